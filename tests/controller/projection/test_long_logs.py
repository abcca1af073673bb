"""The cost of long logs, and of restarts on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro.contract.events import LivePoint, TaskCommitted
from cerebro.state import ExperimentState
from controller.projections import tensorboard as projection
from controller.projections.records import EVENTS_WITH_RECORDS, additions
from tests.controller.projection.written import LogStore, Once, contents, file_of, records, story


def test_events_seen_before_are_not_processed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second reader of the log processes almost nothing."""
    log, looked = story().log, []

    def counted(state: ExperimentState, event: object) -> object:
        looked.append(state.seq)
        return additions(state, event)  # type: ignore[arg-type]

    monkeypatch.setattr(projection, "additions", counted)
    files = Once(LogStore(log), tmp_path)
    for _ in range(2):
        state = ExperimentState(name="one")
        for event in log:
            state.apply(event)
            files.apply(state, event)
    assert looked == [event.seq for event in log if isinstance(event, EVENTS_WITH_RECORDS)]


class Deaf(LogStore):
    """Fail if a test requests live points."""

    def live(self, experiment: str, after: int = 0) -> tuple[LivePoint, ...]:
        raise AssertionError("live points of what is written already were asked for")


def test_events_written_by_an_earlier_process_are_skipped(written: Path) -> None:
    """A restart reads the end of each file, and no earlier live points."""
    before = contents(written)
    Once(Deaf(story().log), written).write()
    assert contents(written) == before


def test_a_log_that_lost_its_end_continues_its_files(written: Path) -> None:
    """The store was restored to an earlier state; new events follow the existing records."""
    before = records(file_of(written))
    log = story().log
    lost = next(
        n for n, event in enumerate(log) if isinstance(event, TaskCommitted) and "e2/p1" in event.task
    )
    later = [event.model_copy(update={"time": event.time + 1000.0}) for event in log[lost:]]
    Once(LogStore([*log[:lost], *later]), written).write()
    found = records(file_of(written))
    assert found[: len(before)] == before
    assert next(tag for tag, *_ in found[len(before) :]) == "sub_epoch/train/accuracy"
