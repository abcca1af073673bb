"""A task that must run alone gets a worker that other runs share."""

from __future__ import annotations

from collections import defaultdict

import pytest

from cerebro.contract.events import (
    RunPaused,
    RunResumed,
    TaskAssigned,
    TaskCommitted,
    TaskFailed,
    TaskRevoked,
)
from cerebro.contract.tasks.bodies import TaskBody
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.state.experiment import fold
from controller.sharing.rounds import PATIENCE_S
from research.simulation.cluster import Simulation
from research.simulation.scenario import EXPERIMENT, Scenario
from tests.controller.side_by_side import neighbour
from tests.controller.test_core import assert_complete, own_partition, plan, request

SUB_EPOCH_S = 5.0


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", ["train", "valid"])
def test_a_task_that_must_run_alone_does_not_wait_forever(kind: str, workers: int) -> None:
    """Other runs could keep all workers busy; after a minute one worker is reserved for the task."""
    exhausted: list[str] = []

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        if exhausted or getattr(body, "model", "") != "m01" or body.key.split("/")[1] != kind:
            return None
        exhausted.append(body.key)
        return Failure(kind=FailureKind.OUT_OF_MEMORY, message="killed for memory")

    scenario = Scenario(
        replicas=own_partition(workers),
        outcome=outcome,
        sub_epoch_time=lambda body, worker: SUB_EPOCH_S,
        devices={f"worker-{number}": 2 for number in range(workers)},
    )
    simulation = Simulation(
        scenario,
        request(2, 3),
        plan(2, workers, validated=True),
        neighbours=[neighbour("other", 12, 12, workers=workers)],
        max_open=2,
    )

    simulation.run()
    logs = {name: simulation.store.events(name) for name in simulation.cores}
    owner, failed = next((n, e) for n, log in logs.items() for e in log if isinstance(e, TaskFailed))
    given = [
        e for e in logs[owner] if isinstance(e, TaskAssigned) and e.task == failed.task and e.attempt == 2
    ]
    (again,) = given
    assert again.time - failed.time <= PATIENCE_S + 3 * SUB_EPOCH_S
    (done,) = (e for e in logs[owner] if isinstance(e, TaskCommitted) and e.task == failed.task)
    for name, log in logs.items():
        given_at: dict[tuple[str, int], float] = {}
        for event in log:
            if isinstance(event, TaskAssigned) and event.worker == again.worker:
                given_at[event.task, event.attempt] = event.time
            elif isinstance(event, TaskCommitted | TaskFailed | TaskRevoked):
                since = given_at.pop((event.task, event.attempt), None)
                is_it = name == owner and event.task == failed.task
                assert is_it or since is None or event.time <= again.time or since >= done.time
    for name, epochs in ((EXPERIMENT, 3), ("other", 12)):
        assert_complete(fold(name, logs[name]), epochs=epochs, partitions=workers)


@pytest.mark.parametrize("workers", [2, 3])
def test_the_reserved_worker_is_one_that_may_run_the_task(workers: int) -> None:
    """Another holder is preferred to the worker where the sub-epoch ran out of memory; otherwise it would
    wait forever."""
    failed: list[str] = []

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        if failed:
            return None
        failed.append(worker)
        return Failure(kind=FailureKind.OUT_OF_MEMORY, message="killed for memory")

    scenario = Scenario(
        replicas={f"worker-{number}": [*range(workers)] for number in range(workers)},
        outcome=outcome,
        sub_epoch_time=lambda body, worker: SUB_EPOCH_S,
        devices={f"worker-{number}": 2 for number in range(workers)},
    )
    other = neighbour("other", 12, 6, at=1.0, workers=workers)
    simulation = Simulation(scenario, request(2, 3), plan(2, workers), neighbours=[other], max_open=2)
    simulation.run()
    (lost,) = (event for event in simulation.log if isinstance(event, TaskFailed))
    (again,) = (e for e in simulation.log if isinstance(e, TaskAssigned) and e.attempt == 2)
    assert again.task == lost.task
    assert again.worker != lost.worker
    assert again.time - lost.time <= PATIENCE_S + 3 * SUB_EPOCH_S


def test_a_paused_run_reserves_no_worker() -> None:
    """Its task waits until the run resumes; other runs use all devices."""
    failed: dict[str, FailureKind] = {}
    kinds = {"m01": FailureKind.OUT_OF_MEMORY, "m00": FailureKind.STORAGE_FULL}

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        model = getattr(body, "model", "")
        if model not in kinds or len(failed) == 2 or model in failed:
            return None
        failed[model] = kinds[model]
        return Failure(kind=kinds[model], message="there is too little", needs_bytes=1 << 50)

    scenario = Scenario(
        replicas=own_partition(2),
        outcome=outcome,
        sub_epoch_time=lambda body, worker: SUB_EPOCH_S,
        lease_s=3600,
    )
    simulation = Simulation(
        scenario,
        request(2, 1),
        plan(2, 2),
        neighbours=[neighbour("other", 6, 12, at=1.0, workers=2)],
        max_open=2,
    )
    resumed = 300.0

    def resume() -> None:
        simulation.store.append(EXPERIMENT, RunResumed(run="fit-1"))

    simulation._at(resumed, resume)
    simulation.run()
    (paused,) = (event for event in simulation.log if isinstance(event, RunPaused))
    since = paused.time + SUB_EPOCH_S
    assert resumed - since > 2 * PATIENCE_S
    other = simulation.cores["other"].state.runs["fit-1"]
    device_s: defaultdict[str, float] = defaultdict(float)
    for sub_epoch in (sub_epoch for model in other.models.values() for sub_epoch in model.sub_epochs):
        device_s[sub_epoch.worker] += max(0.0, min(sub_epoch.ended, resumed) - max(sub_epoch.started, since))
    assert min(device_s.values()) > 0.95 * (resumed - since)
    assert_complete(fold(EXPERIMENT, simulation.log), epochs=1, partitions=2)
