"""The sub-epochs table is the same with and without compaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from random import Random

import pandas as pd
import pytest

from cerebro.client.files import MountedFiles
from cerebro.client.results import FitResult
from cerebro.contract.events import Event, TaskCommitted, TaskFailed, TaskRevoked
from cerebro.contract.stored.segments import SegmentsAnswer
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.errors import LostEventsError
from cerebro.runtime.volumes import Volumes
from cerebro.state import ExperimentState, epoch_report, log_pages
from tests.state.compacted_runs import Undisturbed, compacted_history, epochs_of_all
from tests.state.histories import History
from tests.state.stories import sub_epoch


class Whole:
    """A log that is completely in the database."""

    def __init__(self, log: Sequence[Event]) -> None:
        self._log = log

    def events(self, experiment: str, after: int = 0) -> Sequence[Event]:
        """Return a page of events."""
        return self._log[after : after + 50]

    def segments(self, experiment: str) -> SegmentsAnswer:
        """Return no segments."""
        return SegmentsAnswer()


def results(seed: int, monkeypatch: pytest.MonkeyPatch) -> tuple[FitResult, pd.DataFrame]:
    """Return the run's result and the table without compaction."""
    return both(compacted_history(seed), monkeypatch)


def both(
    history: History, monkeypatch: pytest.MonkeyPatch, *, page: int = 50
) -> tuple[FitResult, pd.DataFrame]:
    """Return the same for any history."""
    monkeypatch.setattr(log_pages, "PAGE", page)
    files = MountedFiles(Volumes.from_environment({}))
    kept = ExperimentState(name="one", compact_after=None)  # type: ignore[call-arg, unused-ignore]
    for event in history.log:
        kept.apply(event)
    expected = FitResult(kept, kept.runs["fit-1"], files).sub_epochs()
    return FitResult(history.state, history.run, files, events=Whole(history.log)), expected


@pytest.mark.parametrize("seed", [0, 3, 5])
def test_all_compacted_sub_epochs_are_read(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the numbers of the sub-epochs. Without the log the result raises."""
    result, expected = results(seed, monkeypatch)
    pd.testing.assert_frame_equal(sorted_(result.sub_epochs()), sorted_(expected))
    without = FitResult(
        compacted_history(seed).state, compacted_history(seed).run, MountedFiles(Volumes.from_environment({}))
    )
    with pytest.raises(LostEventsError, match="attach"):
        without.sub_epochs()


def sorted_(frame: pd.DataFrame) -> pd.DataFrame:
    """Sort rows and columns; the order of simultaneous sub-epochs and of metrics is undefined."""
    return (
        frame.dropna(axis=1, how="all").sort_values(["ended", "model"], ignore_index=True).sort_index(axis=1)
    )


def test_events_with_the_same_time_on_two_pages_are_all_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last compacted sub-epoch and the event before it have the same time, and a page ends between them."""
    history = compacted_history(0)
    last = next(n for n, event in enumerate(history.log) if event.time == history.run.compaction.until)
    log = [*history.log]
    log[last - 1] = log[last - 1].model_copy(update={"time": log[last].time})
    state, whole = (ExperimentState(name="one", compact_after=after) for after in (0, None))
    for event in log:
        state.apply(event)
        whole.apply(event)
    monkeypatch.setattr(log_pages, "PAGE", last)
    files = MountedFiles(Volumes.from_environment({}))
    found = FitResult(state, state.runs["fit-1"], files, events=Whole(log)).sub_epochs()
    expected = FitResult(whole, whole.runs["fit-1"], files).sub_epochs()
    assert len(found) == len(expected)


class Calm(Undisturbed):
    """A run without random failures."""

    def _trouble(self) -> bool:
        return False

    def _crew(self) -> bool:
        return False


def test_a_repeated_sub_epoch_of_an_old_epoch_is_listed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A model lost the checkpoints of three epochs in a long run."""
    history = Calm(Random(7), validated=False, epochs=20, models=2)
    for _ in range(200):
        history.step()
        if history.model("m00").completed_epochs == 4:
            break
    lose(history, "m00", sub_epochs=6)
    history.state.compact_after = history.run.compaction.threshold = 0
    while history.run.counts.active:
        history.step()
        if history.run.is_open and epochs_of_all(history.run) > len(history.run.scheduling.epochs):
            history.append(epoch_report(history.state, history.run, len(history.run.scheduling.epochs) + 1))
    assert history.model("m00").compacted_epochs > 4
    result, expected = both(history, monkeypatch, page=10)
    pd.testing.assert_frame_equal(sorted_(result.sub_epochs()), sorted_(expected))


def lose(history: History, name: str, *, sub_epochs: int) -> None:
    """Lose the newest `count` checkpoints of a model."""
    model = history.model(name)
    for key, task in [*history.run.tasks.open.items()]:
        history.append(TaskRevoked(task=key, attempt=task.attempt, worker=task.worker or "", reason="x"))
    for _ in range(sub_epochs):
        number = model.remaining[0]
        task_key = sub_epoch(model.epoch, number, name)
        history.assign(task_key, number)
        task = history.run.tasks.open[str(task_key)]
        failure = Failure(kind=FailureKind.CHECKPOINT, message="gone")
        history.append(
            TaskFailed(task=str(task_key), attempt=task.attempt, worker=task.worker or "", failure=failure)
        )


@pytest.mark.parametrize("seed", [0, 3, 5])
def test_a_range_of_epochs_or_times_selects_the_same_rows(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By epochs or by time: the same rows. A sub-epoch has its number, or NaN if unknown."""
    result, expected = results(seed, monkeypatch)
    of_epochs = sorted_(result.sub_epochs(epochs=range(2, 4)))
    pd.testing.assert_frame_equal(of_epochs, sorted_(expected[expected["epoch"].isin([2, 3])]))
    of_one = sorted_(result.sub_epochs(epochs=2))
    pd.testing.assert_frame_equal(of_one, sorted_(expected[expected["epoch"] == 2]))
    ends = sorted(expected["ended"])
    since, until = (ends[int(share * len(ends))] for share in (0.2, 0.4))
    found = sorted_(result.sub_epochs(since=since, until=until))
    inside = sorted_(expected[expected["ended"].between(since, until)])
    known = found["sub_epoch"].notna()
    assert (found["sub_epoch"][known] == inside["sub_epoch"][known]).all()
    pd.testing.assert_frame_equal(found.drop(columns="sub_epoch"), inside.drop(columns="sub_epoch"))


def test_lost_events_before_a_time_range_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier pages are read only for start times; missing ones are computed."""
    history = compacted_history(3)

    class Broken(Whole):
        def events(self, experiment: str, after: int = 0) -> Sequence[Event]:
            if not after:
                raise LostEventsError.for_event(experiment, 1, "gone")
            return super().events(experiment, after)

    monkeypatch.setattr(log_pages, "PAGE", 50)
    result = FitResult(
        history.state, history.run, MountedFiles(Volumes.from_environment({})), events=Broken(history.log)
    )
    since, until = _moment(history.log[150].time), _moment(history.log[200].time)
    sub_epochs = {
        e.task for e in history.log[150:200] if isinstance(e, TaskCommitted) and "/train/" in e.task
    }
    assert 0 < len(result.sub_epochs(since=since, until=until)) <= len(sub_epochs) + 1
    with pytest.raises(LostEventsError):
        result.sub_epochs(until=_moment(history.log[40].time))


def _moment(time: float) -> datetime:
    return datetime.fromtimestamp(time, UTC)
