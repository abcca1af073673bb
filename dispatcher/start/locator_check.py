"""Whether dataset locators can be read from here, and what lies there: asked of a process of its own.

What cannot be looked at is no mistake: the workers may see more than this page does, and a page that cannot look says
so. Only what is certainly wrong stands beside its field as such.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from cerebro.contract.records import Locators
from dispatcher.sandbox.bounded_processes import BoundedProcesses, Said
from dispatcher.settings import Settings

CHECK_S = 15.0


@dataclass(frozen=True, kw_only=True)
class LocatorFinding:
    """What was found at one locator; fields that do not apply are empty.

    Attributes:
        field: of the form, such as ``train_metadata``. line: of the field ``misc``, from 1.
        state: ``fine``, ``wrong``, or ``unseen``: it cannot be looked at from here.
        message: why, for the latter two.
        rows, columns, preview: of a metadata table: their number, (name, type) of the first, the first rows as text.
        more_columns: columns that are not shown.
        column: the one whose values name objects. missing: objects of the first rows that are not there.
        sample: the name of one object. image: it as a ``data:`` address, if it is an image that a page may show.
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
    image: str = ""
    text: str = ""


FINDING = TypeAdapter(LocatorFinding)


class LocatorCheck:
    """Looks at locators. Safe for several threads."""

    def __init__(self, settings: Settings) -> None:
        self._processes = BoundedProcesses("dispatcher.start.locator_process", at_once=2, has_keys=True)
        self._token = settings.token.encode()
        self._question = {
            "shared": None if settings.is_local else str(settings.volumes.shared),
            "has_object_store": settings.has_object_store,
            "cpu_s": int(CHECK_S),
        }

    def check(self, locators: Locators) -> tuple[LocatorFinding, ...]:
        """What lies at each locator, in the order of the form.

        Raises:
            BusyError: others check already.
        """
        question = {"locators": locators.model_dump(mode="json"), **self._question}
        said = self._processes.ask(json.dumps(question).encode(), timeout_s=CHECK_S)
        found = {(each.field, each.line): each for each in self._findings(said)}
        unseen = (
            "More was found before it than a page can show"
            if said.is_cut
            else f"It could not be looked at within {CHECK_S:g} s. That is no mistake of yours: large tables and slow "
            "stores take longer"
            if said.is_late
            else f"This page could not look at it: {said.ending}"
            if said.code
            else "This page shows nothing of it: the cluster's token is in it"
        )
        return tuple(
            found.get(key)
            or LocatorFinding(field=key[0], line=key[1], uri=uri, state="unseen", message=unseen)
            for key, uri in _wanted(locators)
        )

    def _findings(self, said: Said) -> Iterator[LocatorFinding]:
        for line in said.output.splitlines():
            if self._token in line:
                continue  # a locator may name any file of this machine's user: the one with the token is not shown
            try:
                yield FINDING.validate_json(line)
            except ValidationError:
                return  # killed in the middle of a line


def _wanted(locators: Locators) -> Iterator[tuple[tuple[str, int], str]]:
    for split, locator in locators.splits().items():
        yield (f"{split}_metadata", 0), locator.metadata
        if locator.objects:
            yield (f"{split}_objects", 0), locator.objects
    for number, uri in enumerate(locators.misc, start=1):
        yield ("misc", number), uri
