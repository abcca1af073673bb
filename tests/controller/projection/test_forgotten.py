"""A deleted experiment is written no more and stops nobody; and how long commits have waited is told."""

from __future__ import annotations

import shutil
from pathlib import Path

from cerebro.contract.events import Event, LivePoint
from cerebro.errors import NotFoundError
from cerebro.state import ExperimentState
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


def test_a_forgotten_experiment_is_written_no_more(written: Path) -> None:
    """What waited is dropped and no file is touched; one of the same name is then written from its beginning."""
    store = LogStore(story().log, points())
    own = Once(store, written)
    own._read_logs()
    assert not own._entries.empty()
    own.forget("one")
    shutil.rmtree(volumes(written).tensorboard / "one")
    own.drain()
    assert not (volumes(written).tensorboard / "one").exists()
    Once(store, written.parent / "fresh").write()
    own.write()
    assert contents(written) == contents(written.parent / "fresh")


def test_what_was_read_of_a_forgotten_life_is_not_written(written: Path) -> None:
    """The experiment is forgotten while its log is being read: the rest of the old log is not that of the new one."""

    class Forgetful(LogStore):
        def events(self, experiment: str, after: int = 0) -> tuple[Event, ...]:
            found = super().events(experiment, after)
            if after == 7:  # once, with some of the log observed and more to come
                own.forget(experiment)
            return found

    own = Once(Forgetful(story().log, points()), written)
    before = contents(written)
    shutil.rmtree(volumes(written).tensorboard / "one")
    own.write()
    assert contents(written) == {}
    # Its successor shows the log of a new life from its beginning, and nothing of it counts as written.
    state = ExperimentState(name="one")
    for event in story().log:
        state.apply(event)
        own.observe(state, event)
    own.drain()
    assert contents(written) == before


def test_a_deleted_experiment_stops_nobody(written: Path, tmp_path: Path) -> None:
    """Its live points are gone when they are asked for: what comes after is written all the same."""

    class Gone(LogStore):
        def live(self, experiment: str, after: int = 0) -> tuple[LivePoint, ...]:
            raise NotFoundError(f"no experiment {experiment!r} in the store")

    root = tmp_path / "own"
    Once(Gone(story().log), root).write()
    assert not records(file_of(root))
    assert records(file_of_run(root)) == records(file_of_run(written))
