"""Deleted experiments are no longer written, and the age of pending commits is reported."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import cast

from cerebro.contract.events import Event, LivePoint
from cerebro.errors import NotFoundError
from cerebro.runtime.kvs.client import KvsClient
from cerebro.state import ExperimentState
from controller.projections.tensorboard import TensorBoardFiles
from tests.controller.projection.written import (
    LogStore,
    Once,
    contents,
    file_of,
    file_of_run,
    points,
    records,
    story,
    volumes,
)
from tests.waiting import HANG_S, until


def test_a_deleted_experiment_is_written_no_more(written: Path) -> None:
    """Pending entries are dropped; a new experiment with the same name starts empty."""
    store = LogStore(story().log, points())
    files = Once(store, written)
    files._read_logs()
    assert not files._entries.empty()
    files.forget("one")
    shutil.rmtree(volumes(written).tensorboard / "one")
    files.drain()
    assert not (volumes(written).tensorboard / "one").exists()
    Once(store, written.parent / "fresh").write()
    files.write()
    assert contents(written) == contents(written.parent / "fresh")


def test_events_read_before_a_deletion_are_not_written(written: Path) -> None:
    """The experiment is deleted during a read of its log; the rest of the old log is discarded."""

    class Forgetful(LogStore):
        def events(self, experiment: str, after: int = 0) -> tuple[Event, ...]:
            found = super().events(experiment, after)
            if after == 7:  # once, in the middle of the log
                files.forget(experiment)
            return found

    files = Once(Forgetful(story().log, points()), written)
    before = contents(written)
    shutil.rmtree(volumes(written).tensorboard / "one")
    files.write()
    assert contents(written) == {}
    # The new experiment's log starts again, with no event settled.
    state = ExperimentState(name="one")
    for event in story().log:
        state.apply(event)
        files.apply(state, event)
    files.drain()
    assert contents(written) == before


def test_a_deleted_experiment_does_not_stop_other_writes(written: Path, tmp_path: Path) -> None:
    """Its live points are gone, but later commits of other experiments are written."""

    class Gone(LogStore):
        def live(self, experiment: str, after: int = 0) -> tuple[LivePoint, ...]:
            raise NotFoundError(f"no experiment {experiment!r} in the store")

    root = tmp_path / "own"
    Once(Gone(story().log), root).write()
    assert not records(file_of(root))
    assert records(file_of_run(root)) == records(file_of_run(written))


def test_the_age_of_the_oldest_pending_commit_is_reported(tmp_path: Path) -> None:
    """The age of the oldest pending commit while the store does not answer; 0 when all are written."""

    class Unreachable(LogStore):
        is_asked, may_answer = threading.Event(), threading.Event()

        def live(self, experiment: str, after: int = 0) -> tuple[LivePoint, ...]:
            self.is_asked.set()
            assert self.may_answer.wait(HANG_S)
            return super().live(experiment, after)

    store = Unreachable(story().log, points())
    files = TensorBoardFiles(cast(KvsClient, store), volumes(tmp_path))
    assert files.lag_s() == 0.0
    files.start()
    assert store.is_asked.wait(HANG_S)
    assert files.lag_s() > 0.0
    store.may_answer.set()
    until(lambda: files.lag_s() == 0.0, "what waited is written")
    files.stop()
