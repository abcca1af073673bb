"""A log to export, and the rows that a tracker must show for it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter

from cerebro.contract.events import Event, ModelStopRequested, RunFinished
from cerebro.contract.records import ExperimentRecord, ExperimentSummary, Locator, Locators
from cerebro.contract.tasks.failures import FailureKind
from cerebro.errors import NotFoundError
from cerebro.exports.projection import PageKey, Projection, Row
from cerebro.state import epoch_report
from tests.state.stories import Story, sub_epoch

_EVENT: TypeAdapter[Event] = TypeAdapter(Event)

Rows = set[tuple[str, int, int, float]]
"""(name, step, time in ms, value)."""


def record(name: str = "one", created: float = 1.5) -> ExperimentRecord:
    return ExperimentRecord(name=name, created=created, locators=Locators(train=Locator(metadata="m.csv")))


def story() -> Story:
    """Three models: one finishes after a retried sub-epoch and a lost checkpoint, one fails, one is stopped."""
    story = Story()
    story.fit(models=3, validated=True)
    story.fail(sub_epoch(1, 0), 0, FailureKind.CRASH)
    story.train(1, 0, rows=10, loss=4.0, accuracy=0.25)
    story.train(1, 1, rows=30, loss=2.0, accuracy=0.5)
    story.train(1, 0, model="m01", loss=9.0)
    story.train(2, 0, rows=10, loss=1.5, accuracy=0.75)
    story.fail(sub_epoch(2, 1), 1, FailureKind.CHECKPOINT)
    story.train(2, 0, rows=10, loss=1.5, accuracy=0.75)
    story.train(2, 1, rows=30, loss=1.0, accuracy=1.0)
    # The second epoch is validated before the first.
    story.validate(2, loss=2.5)
    story.validate(1, loss=3.0)
    story.fail(sub_epoch(1, 1, "m01"), 1, FailureKind.USER_ERROR)
    story.append(ModelStopRequested(run="fit-1", model="m02", by="ada"))
    story.append(epoch_report(story.state, story.run, 1))
    story.append(epoch_report(story.state, story.run, 2))
    story.append(RunFinished(run="fit-1", outcome="finished"))
    return story


def long_log(models: int = 6, epochs: int = 8) -> tuple[Event, ...]:
    """Return a log long enough to interrupt its export many times."""
    story = Story()
    story.fit(models=models, epochs=epochs)
    for epoch in range(1, epochs + 1):
        for model in range(models):
            for partition in (0, 1):
                number = 100.0 * epoch + 10 * model + partition
                story.train(epoch, partition, model=f"m{model:02}", loss=number, accuracy=1 / number)
    story.append(RunFinished(run="fit-1", outcome="finished"))
    return tuple(story.log)


def expected(
    log: Sequence[Event], of: ExperimentRecord | None = None
) -> dict[PageKey, list[tuple[str, int, int, float]]]:
    """Return the expected rows of each page in log order."""
    projection = Projection(of or record())
    found: dict[PageKey, list[tuple[str, int, int, float]]] = {}
    for event in log:
        for page_key, row in projection.apply(event):
            found.setdefault(page_key, []).append(as_exported(row))
    return found


def as_exported(row: Row) -> tuple[str, int, int, float]:
    return row.name, row.step, round(row.time * 1000), row.value


class LogStore:
    """A store client that returns one experiment's log a few events at a time."""

    def __init__(self, log: Sequence[Event], of: ExperimentRecord | None = None, page: int = 7) -> None:
        self.log, self.record, self._page = log, of or record(), page

    def experiments(self) -> tuple[ExperimentSummary, ...]:
        summary = ExperimentSummary(
            experiment=self.record, last_seq=len(self.log), last_event=0.0, open_runs=()
        )
        return (summary,)

    def experiment(self, name: str) -> ExperimentRecord:
        if name != self.record.name:
            raise NotFoundError(f"no experiment {name!r}")
        return self.record

    def events(self, experiment: str, after: int = 0) -> Sequence[Event]:
        return self.log[after : after + self._page]


def write_log(path: Path, log: Sequence[Event]) -> None:
    path.write_text("\n".join(event.model_dump_json() for event in log))


def read_log(path: Path) -> list[Event]:
    return [_EVENT.validate_python(json.loads(line)) for line in path.read_text().splitlines()]
