"""Live metrics: a bounded number per model with extremes, held no longer than necessary."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from cerebro.contract.events import Event, LivePoint, TaskAssigned, TaskRevoked, TaskStarted
from cerebro.contract.tasks.failures import FailureKind
from cerebro.figures.downsample import FEWEST
from controller.projections.records import LIVE_VALUES, live_share
from tests.controller.projection.written import LogStore, Once, contents, file_of, records
from tests.state.stories import Story, sub_epoch


def test_extremes_and_the_last_of_many_live_metrics_are_kept(tmp_path: Path) -> None:
    """A sub-epoch has its share of the model's values, and a spike survives."""
    story = Story()
    story.fit(models=1)
    story.train(1, 0, rows=10_000)
    values = [1.0] * 10_000
    values[1234], values[4321] = 99.0, -99.0
    points = [
        LivePoint(
            seq=n,
            time=100.0 + n / 10_000,
            task=str(sub_epoch(1, 0)),
            attempt=1,
            worker="worker-0",
            rows=n,
            values={"loss": v},
        )
        for n, v in enumerate(values, start=1)
    ]

    class Paged(LogStore):
        def live(self, experiment: str, after: int = 0) -> tuple[LivePoint, ...]:
            return tuple(self.points[after : after + 1000])

    Once(Paged(story.log, points), tmp_path).write()
    drawn = [(step, value) for tag, step, _, value in records(file_of(tmp_path)) if tag == "live/loss"]
    assert len(drawn) <= LIVE_VALUES // 4  # two epochs of two sub-epochs
    assert {(1235, 99.0), (4322, -99.0), (10_000, 1.0)} <= set(drawn)
    assert drawn == sorted(drawn)


@pytest.mark.parametrize("sub_epochs", [1, 4, 125, 126, 1_600, 100_000])
def test_the_number_of_live_metrics_per_model_is_bounded(sub_epochs: int) -> None:
    """About 500 values for any number of sub-epochs; the first sub-epoch has some, and more than half are used."""
    shares = [live_share(sub_epoch, sub_epochs) for sub_epoch in range(sub_epochs)]
    assert shares[0] >= FEWEST
    assert LIVE_VALUES / 2 < sum(shares) <= LIVE_VALUES
    assert all(share == 0 or share >= FEWEST for share in shares)


def long_story() -> tuple[Sequence[Event], Sequence[LivePoint]]:
    """A run with 20 sub-epochs and 30 live points before each commit."""
    story, live_points = Story(), list[LivePoint]()
    story.fit(models=1, epochs=10)
    for epoch in range(1, 11):
        for partition in (0, 1):
            for row in range(30):
                point = LivePoint(
                    seq=len(live_points) + 1, time=story.time + 0.5, task=str(sub_epoch(epoch, partition)),
                    attempt=1, worker="w",
                    rows=row, values={"loss": 1.0},
                )  # fmt: skip
                live_points.append(point)
            story.train(epoch, partition, rows=30, loss=1.0)
    return story.log, live_points


def test_a_restart_holds_live_points_of_one_commit_at_a_time(tmp_path: Path) -> None:
    """The projection reads live points up to a commit and drops them once it is written."""
    log, live_points = long_story()

    class Counted(LogStore):
        furthest = 0

        def live(self, experiment: str, after: int = 0) -> tuple[LivePoint, ...]:
            found = super().live(experiment, after)
            self.furthest = max(self.furthest, after + len(found))
            return found

    store = Counted(log, live_points)
    files = Once(store, tmp_path)
    files._read_logs()
    held, entries = [], files._gather()
    for done, entry in enumerate(entries):
        assert files._is_written(entry)
        held.append(sum(map(len, files._live["one"]._points.values())))
        if done == 1:  # start and commit of the first sub-epoch
            assert store.furthest < 60
    assert store.furthest == len(live_points)
    assert max(held) < 60
    assert held[-1] == 0
    files.forget("one")


def test_live_points_of_failed_attempts_are_dropped(tmp_path: Path) -> None:
    """Failed, revoked and re-executed attempts."""
    story = Story()
    story.fit(models=3)
    story.train(1, 0, loss=1.0)
    story.fail(sub_epoch(1, 1), 1, FailureKind.CHECKPOINT)
    story.train(1, 0, loss=1.0)
    story.fail(sub_epoch(1, 0, "m01"), 0, FailureKind.USER_ERROR)
    taken = sub_epoch(1, 1, "m02")
    story.append(TaskAssigned(task=str(taken), attempt=1, worker="worker-1"))
    story.append(TaskStarted(task=str(taken), attempt=1, worker="worker-1"))
    story.append(TaskRevoked(task=str(taken), attempt=1, worker="worker-1", reason="stopped"))
    reporting = [
        (sub_epoch(1, 0), 1),
        (sub_epoch(1, 0), 2),
        (sub_epoch(1, 1), 1),
        (sub_epoch(1, 0, "m01"), 1),
        (taken, 1),
    ]
    live_points = [
        LivePoint(seq=n, time=100.0, task=str(key), attempt=attempt, worker="w", rows=1, values={"loss": 1.0})
        for n, (key, attempt) in enumerate(reporting, start=1)
    ]
    files = Once(LogStore(story.log, live_points), tmp_path)
    files.write()
    assert files._live["one"]._points == {}
    assert contents(tmp_path).keys() == {file_of(tmp_path).relative_to(tmp_path)}
