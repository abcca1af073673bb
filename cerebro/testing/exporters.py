"""The contract suite of exporters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from cerebro.contract.events import Event
from cerebro.contract.records import ExperimentRecord, ExperimentSummary, Locator, Locators
from cerebro.errors import ExportError
from cerebro.exports import Export, Projection
from cerebro.exports.export_loop import ExperimentExport

Values = list[tuple[str, int, float]]
"""Name, step and value of each row."""


def check_exporter(
    make: Callable[[Projection, Mapping[str, str]], Export],
    shown: Callable[[str], Sequence[tuple[str, int, float]]],
    options: Mapping[str, str] | None = None,
) -> None:
    """Export the log of a small fit several times, in parts, and check what the tracker shows.

    The fit has three models: one finishes after a repeated sub-epoch, one fails, and one is stopped. Each value must be
    in the tracker once, although new processes continue the export.

    Args:
        make: creates the exporter.
        shown: returns the rows that the tracker has for the id of a page (`Page.id`): name, step and value, in any
            order. Names must be those of the rows.
        options: options of the exporter.

    Raises:
        ExportError: a value is missing, wrong, or there more than once.
    """
    log = _sample_log()
    for length in (4, 15, 15, 30, len(log), len(log)):
        projection = _export(log[:length], lambda of: make(of, dict(options or {})))
        for page in projection.pages():
            expected = sorted(_rows(log[:length]).get(page.id, []))
            found = sorted((name, step, float(value)) for name, step, value in shown(page.id))
            if found != expected:
                wrong = [each for each in found if each not in expected or found.count(each) > 1]
                missing = [each for each in expected if each not in found]
                raise ExportError(
                    f"after {length} events the page {page.name} ({page.id}) lacks {missing[:5]} and has wrong or "
                    f"repeated values {wrong[:5]}: expected each value once"
                )


def _export(log: Sequence[Event], make: Callable[[Projection], Export]) -> Projection:
    """Export a log as a new process does."""
    export = ExperimentExport(_Log(log), _RECORD, make)
    export.catch_up()
    return export.projection


def _rows(log: Sequence[Event]) -> dict[str, Values]:
    projection, found = Projection(_RECORD), dict[str, Values]()
    for event in log:
        for key, row in projection.apply(event):
            found.setdefault(projection.id_of(key), []).append((row.name, row.step, row.value))
    return found


_RECORD = ExperimentRecord(name="sample", created=1.5, locators=Locators(train=Locator(metadata="train.csv")))


def _sample_log() -> list[Event]:
    adapter: TypeAdapter[Any] = TypeAdapter(Event)
    lines = Path(__file__).with_name("sample_log.jsonl").read_text().splitlines()
    return [adapter.validate_json(line) for line in lines]


class _Log:
    """A store with one experiment."""

    def __init__(self, log: Sequence[Event]) -> None:
        self._log = log

    def experiments(self) -> tuple[ExperimentSummary, ...]:
        return ()

    def experiment(self, name: str) -> ExperimentRecord:
        return _RECORD

    def events(self, experiment: str, after: int = 0) -> Sequence[Event]:
        return self._log[after : after + 7]
