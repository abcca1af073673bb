"""Whether dataset locators can be read from here, and what lies there: asked of a child process.

What cannot be looked at is no mistake: the workers may see more than this page does, and a page that cannot look says
so. Only what is certainly wrong stands beside its field as such.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from cerebro.contract.records import Locators
from cerebro.errors import NotFoundError
from dispatcher.sandbox.child import Children, Said
from dispatcher.settings import Settings

CHECK_S = 15.0
PREVIEW_S = 8.0


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What was found at one locator; fields that do not apply are empty.

    Attributes:
        field: of the form, such as ``train_metadata``. line: of the field ``misc``, from 1.
        state: ``fine``, ``wrong``, or ``unseen``: it cannot be looked at from here.
        message: why, for the latter two.
        rows, columns, preview: of a metadata table: their number, (name, type) of the first, the first rows as text.
        more_columns: columns that are not shown.
        column: the one whose values name objects. missing: objects of the first rows that are not there.
        sample, sample_uri, kind: one object, its address, and its media type if it is an image that a page may show.
        text: the beginning of one that is text.
        num_bytes: of the table, or of that object.
    """

    field: str
    uri: str
    state: str
    message: str = ""
    line: int = 0
    num_bytes: int | None = None
    rows: int | None = None
    columns: tuple[tuple[str, str], ...] = ()
    more_columns: int = 0
    preview: tuple[tuple[str, ...], ...] = ()
    column: str = ""
    missing: tuple[str, ...] = ()
    sample: str = ""
    sample_uri: str = ""
    kind: str = ""
    text: str = ""


_FINDING = TypeAdapter(Finding)


@dataclass(frozen=True, kw_only=True)
class Preview:
    """An image that a page may show."""

    kind: str
    content: bytes = field(repr=False)


class LocatorCheck:
    """Looks at locators. Safe for several threads."""

    def __init__(self, settings: Settings) -> None:
        self._children = Children("dispatcher.start.locator_process", at_once=2, has_keys=True)
        self._token = settings.token.encode()
        self._where = {
            "is_local": settings.is_local,
            "shared": str(settings.volumes.shared),
            "has_object_store": settings.has_object_store,
        }

    def check(self, locators: Locators) -> tuple[Finding, ...]:
        """What lies at each locator, in the order of the form.

        Raises:
            BusyError: others check already.
        """
        said = self._ask({"locators": locators.model_dump(mode="json")}, CHECK_S)
        found = {(each.field, each.line): each for each in map(_FINDING.validate_python, _spoken(said))}
        late = (
            "More was found before it than a page can show"
            if said.is_cut
            else f"It could not be looked at within {CHECK_S:g} s. That is no mistake of yours: large tables and slow "
            "stores take longer"
            if said.is_late
            else "This page could not look at it: it had not enough memory, or its reader ended"
        )
        return tuple(
            found.get(key) or Finding(field=key[0], line=key[1], uri=uri, state="unseen", message=late)
            for key, uri in _wanted(locators)
        )

    def preview(self, uri: str) -> Preview:
        """An image at that address.

        Raises:
            NotFoundError: it is none that a page may show, or cannot be read from here.
            BusyError: others look already.
        """
        for answer in _spoken(self._ask({"preview": uri}, PREVIEW_S)):
            if answer.get("kind"):
                return Preview(kind=answer["kind"], content=base64.b64decode(answer["content"]))
        raise NotFoundError(f"there is no image to be shown at {uri[:200]}")

    def _ask(self, question: Mapping[str, Any], timeout_s: float) -> Said:
        asked = {**question, **self._where, "cpu_s": int(timeout_s)}
        said = self._children.ask(json.dumps(asked).encode(), timeout_s=timeout_s)
        # A locator may name any file of this machine's user; the one with the token is not shown on a page.
        return Said(output=b"", code=said.code) if self._token in said.output else said


def _spoken(said: Said) -> Iterator[dict[str, Any]]:
    for line in said.output.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return  # killed in the middle of a line


def _wanted(locators: Locators) -> Iterator[tuple[tuple[str, int], str]]:
    for split, locator in locators.splits().items():
        yield (f"{split}_metadata", 0), locator.metadata
        if locator.objects:
            yield (f"{split}_objects", 0), locator.objects
    for number, uri in enumerate(locators.misc, start=1):
        yield ("misc", number), uri
