"""Sub-epochs that run out of memory: another worker first, then alone, then a final failure."""

from __future__ import annotations

from cerebro.contract.tasks.bodies import TaskBody
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.state import ExperimentState, ModelState
from cerebro.state.experiment import fold
from research.simulation.cluster import Simulation
from research.simulation.scenario import EXPERIMENT, Scenario
from tests.controller.test_core import (
    assert_complete,
    own_partition,
    plan,
    request,
)


def out_of_memory_once(model: str, sub_epoch: int) -> tuple[list[str], object]:
    """Fail the model's sub-epoch once; also return the workers that tried it."""
    tried: list[str] = []

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        if getattr(body, "model", "") == model and getattr(body, "sub_epoch", -1) == sub_epoch:
            tried.append(worker)
            if len(tried) == 1:
                return Failure(kind=FailureKind.OUT_OF_MEMORY, message="killed for memory")
        return None

    return tried, outcome


def test_an_out_of_memory_retry_prefers_another_worker() -> None:
    """Another holder of the partition may have more memory."""
    tried, outcome = out_of_memory_once("m01", 0)
    scenario = Scenario(
        replicas={"worker-0": [0, 1], "worker-1": [0, 1]},
        outcome=outcome,  # type: ignore[arg-type]
    )
    simulation = Simulation(scenario, request(4, 2), plan(4, 2))
    simulation.run()
    assert len(set(tried[:2])) == 2
    assert_complete(fold(EXPERIMENT, simulation.log), epochs=2, partitions=2)


def test_an_out_of_memory_retry_runs_alone() -> None:
    """No other task is queued there, so no second model is in memory."""
    tried, outcome = out_of_memory_once("m01", 1)
    scenario = Scenario(replicas=own_partition(2), outcome=outcome)  # type: ignore[arg-type]
    simulation = Simulation(scenario, request(6, 3), plan(6, 2))
    simulation.run()
    assert len(tried) == 2
    state = ExperimentState(name=EXPERIMENT)
    seen_retry = False
    for event in simulation.log:
        state.apply(event)
        worker = state.workers.get(tried[1])
        open_tasks = worker.open_tasks if worker else []
        retried = [
            key
            for key in open_tasks
            if (task := state.runs["fit-1"].tasks.by_key[key]).exhausted and task.attempt == 2
        ]
        seen_retry |= bool(retried)
        assert not retried or len(open_tasks) == 1
    assert seen_retry
    assert_complete(state, epochs=3, partitions=2)


def test_a_sub_epoch_that_always_runs_out_of_memory_fails() -> None:
    """Its model fails after the permitted attempts; other models continue."""

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        is_large = getattr(body, "model", "") == "m00"
        return Failure(kind=FailureKind.OUT_OF_MEMORY, message="killed for memory") if is_large else None

    simulation = Simulation(Scenario(replicas=own_partition(2), outcome=outcome), request(2, 1), plan(2, 2))
    simulation.run()
    models = fold(EXPERIMENT, simulation.log).runs["fit-1"].models
    assert models["m00"].state is ModelState.FAILED
    assert models["m01"].state is ModelState.FINISHED
