"""Volumes that are full or unavailable: no failure counts against a model, and the run resumes by itself."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from cerebro.contract.events import RunPaused, RunResumed, TaskCommitted, TaskFailed
from cerebro.contract.tasks.bodies import TaskBody, TrainTask
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.runtime.volume_errors import of_volume
from cerebro.state import ModelState
from cerebro.state.experiment import fold
from cerebro.state.tasks.failure_events import MAX_VOLUME_FAILURES
from cerebro.worker.child.task_loop import failure_of
from research.simulation.cluster import Simulation
from research.simulation.scenario import EXPERIMENT, Scenario
from tests.controller.test_core import assert_complete, own_partition, plan, request

AWAY = Failure(kind=FailureKind.UNAVAILABLE, message="/volumes/x is read-only", volume="/volumes/x")
FULL = Failure(kind=FailureKind.STORAGE_FULL, message="no room in /volumes/x", volume="/volumes/x")
NEEDS = FULL.model_copy(update={"needs_bytes": 1000})


def simulated(broken_s: float, failure_of_task: Callable[[TaskBody], Failure | None]) -> Simulation:
    """Run three models for two epochs; tasks fail as given until `broken_s` seconds have passed."""

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        return failure_of_task(body) if simulation.now < broken_s else None

    simulation = Simulation(
        Scenario(replicas=own_partition(2), outcome=outcome), request(3, 2), plan(3, 2, validated=True)
    )
    simulation.run()
    return simulation


@pytest.mark.parametrize("failure", [AWAY, FULL, NEEDS], ids=["away", "full", "full checkpoints"])
@pytest.mark.parametrize("broken_s", [2.0, 40.0, 400.0])
def test_a_run_survives_an_unavailable_volume(failure: Failure, broken_s: float) -> None:
    """Each model finishes, each sub-epoch is committed once, and the run resumes by itself."""
    sim = simulated(broken_s, lambda body: failure)
    state = fold(EXPERIMENT, sim.log)
    assert_complete(state, epochs=2, partitions=2)
    assert {model.state for model in state.runs["fit-1"].models.values()} == {ModelState.FINISHED}
    commits = [event.task for event in sim.log if isinstance(event, TaskCommitted)]
    assert len(commits) == len(set(commits))
    pauses = [event for event in sim.log if isinstance(event, RunPaused)]
    if broken_s > 5:
        assert all(event.volume == "/volumes/x" and "/volumes/x" in event.reason for event in pauses)
    assert len(pauses) <= 8, "the pauses grow"
    assert len(pauses) == sum(isinstance(event, RunResumed) for event in sim.log)
    assert sim.now < broken_s + 150, "it goes on within two minutes"


def test_a_model_that_leaks_file_descriptors_fails_alone() -> None:
    """Its attempts count, and the other models continue."""
    error = of_volume(OSError(errno.EMFILE, "Too many open files"), Path("/volumes/x"))
    assert error is not None
    failure = failure_of(error)

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        return failure if isinstance(body, TrainTask) and body.model == "m00" else None

    simulation = Simulation(Scenario(replicas=own_partition(2), outcome=outcome), request(3, 2), plan(3, 2))
    simulation.run()
    models = fold(EXPERIMENT, simulation.log).runs["fit-1"].models
    assert {name for name, model in models.items() if model.state is not ModelState.FINISHED} == {"m00"}
    failed = models["m00"].failures.final
    assert failed is not None
    assert "Too many open files" in failed.message
    assert not any(isinstance(event, RunPaused) for event in simulation.log)


def test_a_partition_unreadable_at_its_only_holder_pauses_the_run() -> None:
    """After a pause one attempt of each model tries the volume, so that the log stays short."""
    unread = AWAY.model_copy(update={"volume": "/volumes/x/shard-00000.arrow"})
    sim = simulated(
        3600.0, lambda body: unread if isinstance(body, TrainTask) and body.partition == 0 else None
    )
    assert_complete(fold(EXPERIMENT, sim.log), epochs=2, partitions=2)
    pauses = [event for event in sim.log if isinstance(event, RunPaused)]
    assert {event.volume for event in pauses} == {unread.volume}
    failed = sum(isinstance(event, TaskFailed) for event in sim.log)
    assert failed <= 3 * MAX_VOLUME_FAILURES + 3 * len(pauses), (
        "each pause ends with one attempt of each model"
    )
    assert sim.now < 3600 + 150
