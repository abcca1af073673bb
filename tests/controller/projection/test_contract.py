"""The contract of projections: one process or several processes produce the same data from a log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cerebro.contract.events import Event
from cerebro.state import ExperimentState
from cerebro.state.snapshots import packed, unpacked
from controller.decisions.core import Core
from controller.projections.history import RunHistory
from controller.projections.projection import Projection, Projections
from research.simulation.scenario import EXPERIMENT
from tests.controller.projection.written import LogStore, Once, contents
from tests.controller.test_history import Clock, Store, simulation


@pytest.fixture(scope="module")
def log() -> tuple[Event, ...]:
    sim = simulation()
    sim.run()
    return sim.log


class _TensorBoard:
    """Event files in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def process(self) -> tuple[Projection, Callable[[], None]]:
        """Start a process; return its projection and a function that stores pending data."""
        files = Once(LogStore(()), self.root)
        return files, files.drain

    def data(self) -> Any:
        return contents(self.root)


class _History:
    """Rows of the store."""

    def __init__(self, root: Path) -> None:
        self.store = Store()

    def process(self) -> tuple[Projection, Callable[[], None]]:
        clock = Clock()
        history = RunHistory(self.store, clock)
        history.open(EXPERIMENT, self.store.term)

        def settle() -> None:
            clock.now += 60.0
            history.reconcile(self.store.term)

        return history, settle

    def data(self) -> Any:
        found = self.store.inner.history().sub_epochs
        return {
            key: {name: f"{number:.9g}" for name, number in row.model_dump().items()}
            for key, row in found.items()
        }


def apply_log(kind: _TensorBoard | _History, log: tuple[Event, ...], cuts: tuple[int, ...]) -> Any:
    """Apply a log, with a new process and a restored snapshot after each of these event numbers."""
    state = ExperimentState(name=EXPERIMENT)
    for start, end in zip((0, *cuts), (*cuts, len(log)), strict=True):
        state = unpacked(packed(state), ExperimentState)
        projection, settle = kind.process()
        projections = Projections([projection])
        if start:
            projections.begin(state)
        for event in log[start:end]:
            state.apply(event)
            projections.apply(state, event)
        settle()
        assert projections.is_settled(EXPERIMENT, state.seq)
    return kind.data()


@pytest.mark.parametrize("kind", [_TensorBoard, _History])
@pytest.mark.parametrize("parts", [2, 5])
def test_a_log_applied_in_parts_gives_the_same_data(
    log: tuple[Event, ...], tmp_path: Path, kind: Any, parts: int
) -> None:
    """A new process with a restored snapshot applies each part."""
    whole = apply_log(kind(tmp_path / "whole"), log, ())
    cuts = tuple(len(log) * number // parts for number in range(1, parts))
    assert whole
    assert apply_log(kind(tmp_path / "parts"), log, cuts) == whole


@pytest.mark.parametrize("kind", [_TensorBoard, _History])
def test_unstored_data_are_not_settled(log: tuple[Event, ...], tmp_path: Path, kind: Any) -> None:
    """A snapshot must not contain their events."""
    state = ExperimentState(name=EXPERIMENT)
    projection, settle = kind(tmp_path).process()
    for event in log:
        state.apply(event)
        projection.apply(state, event)
    assert not projection.is_settled(EXPERIMENT, state.seq)
    settle()
    assert projection.is_settled(EXPERIMENT, state.seq)


def test_timings_are_the_same_after_a_restored_snapshot(log: tuple[Event, ...]) -> None:
    """The core derives them from the restored state instead of earlier events."""
    end = len(log) * 3 // 4
    whole = Core(simulation().store.experiment(EXPERIMENT))
    for event in log[:end]:
        whole.apply(event, is_news=False)
    state = ExperimentState(name=EXPERIMENT)
    for event in log[: end // 2]:
        state.apply(event)
    parts = Core(whole.record, state=unpacked(packed(state), ExperimentState))
    for event in log[end // 2 : end]:
        parts.apply(event, is_news=False)
    assert whole.slowness() == {name: pytest.approx(each) for name, each in parts.slowness().items()}
    assert whole.slowness()
