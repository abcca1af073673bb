"""Check of dataset locators, with a preview, in a child process (`locator_process`) with 15 s at most.

Only `start.page` uses it. Workers may see more than this page, so an unreadable locator is not an error; the page
says that it was not checked. Only definite errors are reported as errors of the field.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from cerebro.contract.records import Locators
from dispatcher.sandbox.bounded_processes import BoundedProcesses, ProcessResult
from dispatcher.settings import Settings

CHECK_S = 15.0


@dataclass(frozen=True, kw_only=True)
class LocatorFinding:
    """Result for one locator. Fields that do not apply are empty.

    Attributes:
        field: name of the form field, such as ``train_metadata``.
        line: line of the field ``misc``, from 1.
        state: ``fine``, ``wrong``, or ``unseen`` (cannot be checked from here).
        message: reason for the latter two.
        num_bytes: size of the table or of the sample object.
        rows, columns, preview: number of rows, (name, type) of columns, and first rows of a metadata table.
        more_columns: number of columns that are not shown.
        column: column with the names of objects.
        missing: names in the first rows without an object.
        sample: name of one object.
        image: that object as a ``data:`` address, if it is an image that a page may show.
        text: beginning of that object, if it is text.
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
    """Checks locators. Safe for several threads."""

    def __init__(self, settings: Settings) -> None:
        self._processes = BoundedProcesses("dispatcher.start.locator_process", at_once=2, has_keys=True)
        self._token = settings.token.encode()
        self._request = {
            "shared": None if settings.is_local else str(settings.volumes.shared),
            "has_object_store": settings.has_object_store,
            "cpu_s": int(CHECK_S),
        }

    def check(self, locators: Locators) -> tuple[LocatorFinding, ...]:
        """Return the result for each locator, in the order of the form.

        Raises:
            BusyError: too many checks are running.
        """
        request = {"locators": locators.model_dump(mode="json"), **self._request}
        result = self._processes.run(json.dumps(request).encode(), timeout_s=CHECK_S)
        found = {(each.field, each.line): each for each in self._findings(result)}
        unseen = (
            "The results of the other locators are too large to show this one"
            if result.is_cut
            else f"The check took longer than {CHECK_S:g} s. This is not an error: large tables and slow stores "
            "need more time"
            if result.is_late
            else f"The check failed: {result.ending}"
            if result.code
            else "The content is hidden, because it contains the cluster's token"
        )
        return tuple(
            found.get(key)
            or LocatorFinding(field=key[0], line=key[1], uri=uri, state="unseen", message=unseen)
            for key, uri in _expected(locators)
        )

    def _findings(self, result: ProcessResult) -> Iterator[LocatorFinding]:
        for line in result.output.splitlines():
            if self._token in line:
                # A locator may name any file that this machine's user can read, but never show the token's file.
                continue
            try:
                yield FINDING.validate_json(line)
            except ValidationError:
                return  # the process was killed while writing this line


def _expected(locators: Locators) -> Iterator[tuple[tuple[str, int], str]]:
    for split, locator in locators.splits().items():
        yield (f"{split}_metadata", 0), locator.metadata
        if locator.objects:
            yield (f"{split}_objects", 0), locator.objects
    for number, uri in enumerate(locators.misc, start=1):
        yield ("misc", number), uri
