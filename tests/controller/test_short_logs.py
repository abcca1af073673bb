"""A run whose log is always truncated, under controller crashes, equals a normal run."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import Event
from cerebro.contract.tasks.bodies import TaskBody
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.state import ExperimentState, RunState
from cerebro.state.experiment import fold
from research.simulation.cluster import Simulation
from research.simulation.scenario import EXPERIMENT, Scenario, WorkerOutage
from tests.controller.test_core import assert_complete, assert_exclusive, own_partition, plan, request


def short(
    crash_before: frozenset[int] = frozenset(), *, epochs: int = 2, every: int = 12, **more: object
) -> Simulation:
    """Return a run of three models on two workers with a snapshot each `every` events.

    Truncated events are unreadable during the run, so a restarted controller must not need them.
    """
    scenario = Scenario(replicas=own_partition(2), crash_before=crash_before, keeps_every=every, **more)  # type: ignore[arg-type]
    simulation = Simulation(scenario, request(3, epochs), plan(3, 2))
    simulation.store.files_are_lost = True
    simulation.run(limit=20_000)
    simulation.store.files_are_lost = False
    return simulation


def log_of(simulation: Simulation) -> list[Event]:
    return [*simulation.store.events(EXPERIMENT)]


def known_to(simulation: Simulation) -> ExperimentState:
    """Return the controller's state after the rest of the log, because it may have crashed at its last write."""
    state = simulation.core.state
    for event in simulation.store.events(EXPERIMENT, state.seq):
        state.apply(event)
    return state


def test_truncation_does_not_change_the_log() -> None:
    """The events are equal, and most are in files."""
    cut = short()
    whole = Simulation(Scenario(replicas=own_partition(2)), request(3, 2), plan(3, 2))
    whole.run()
    assert log_of(cut) == log_of(whole)
    segments = cut.store.segments(EXPERIMENT).segments
    assert len(segments) >= 2
    assert segments[-1].last > len(log_of(cut)) / 2


def test_a_run_survives_a_crash_at_any_write_of_snapshots_and_segments() -> None:
    """The crash is before each write or before its answer; no segment is read."""
    undisturbed = short()
    assert undisturbed.writes > 15
    for write in range(undisturbed.writes + 1):
        simulation = short(frozenset({write}))
        state = fold(EXPERIMENT, log_of(simulation))
        assert state.runs["fit-1"].state is RunState.FINISHED, f"crash at write {write}"
        assert_complete(state, epochs=2, partitions=2)
        assert_exclusive(simulation)
        assert known_to(simulation) == state, f"crash at write {write}"


@pytest.mark.slow
def test_a_compacting_controller_may_crash_at_any_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same test with compacted sub-epochs: snapshots and complete folds compact the same."""
    monkeypatch.setattr("cerebro.state.experiment.COMPACT_AFTER", 0)
    undisturbed = short(epochs=4)
    for write in range(undisturbed.writes + 1):
        simulation = short(frozenset({write}), epochs=4)
        state = fold(EXPERIMENT, log_of(simulation))
        run = state.runs["fit-1"]
        assert run.state is RunState.FINISHED, f"crash at write {write}"
        assert all(model.compacted_epochs for model in run.models.values())
        assert_exclusive(simulation)
        assert known_to(simulation) == state, f"crash at write {write}"


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_any_run_survives_short_logs(data: st.DataObject) -> None:
    """Workers leave, sub-epochs fail, checkpoints are lost and controllers crash; the core's state equals the
    complete fold."""
    kinds = (FailureKind.CRASH, FailureKind.CHECKPOINT, FailureKind.OUT_OF_MEMORY)
    failing = data.draw(
        st.dictionaries(st.integers(0, 30), st.sampled_from(kinds), max_size=4), label="failing"
    )
    attempts = iter(range(1_000_000))

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        kind = failing.get(next(attempts)) if attempt == 1 else None
        return Failure(kind=kind, message="drawn") if kind else None

    simulation = short(
        data.draw(st.frozensets(st.integers(0, 120), max_size=4), label="crashes"),
        every=data.draw(st.integers(6, 40), label="every"),
        outcome=outcome,
        outages=[
            WorkerOutage(worker=name, start=data.draw(st.floats(0, 15)), length=data.draw(st.floats(0.1, 30)))
            for name in data.draw(
                st.sets(st.sampled_from(["worker-0", "worker-1"]), max_size=1), label="away"
            )
        ],
    )
    assert known_to(simulation) == fold(EXPERIMENT, log_of(simulation))
    assert not simulation.store.queue()
