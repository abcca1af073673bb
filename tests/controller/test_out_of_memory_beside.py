"""A task that must be alone on a worker gets one although other runs share it, and is alone there."""

from __future__ import annotations

import pytest

from cerebro.contract.events import TaskAssigned, TaskCommitted, TaskFailed, TaskRevoked
from cerebro.contract.tasks import Failure, FailureKind, TaskBody
from cerebro.state.experiment import fold
from controller.sharing import PATIENCE_S
from controller.simulation.cluster import Simulation
from controller.simulation.scenario import EXPERIMENT, Scenario
from tests.controller.test_core import assert_complete, own_partition, plan, request
from tests.controller.test_sharing import neighbour

UNIT_S = 5.0


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", ["train", "valid"])
def test_a_task_that_must_be_alone_does_not_wait_for_ever(kind: str, workers: int) -> None:
    """Other runs have enough to do to keep each worker busy: after a minute one is kept free, and while the task is
    there nothing else of any run is."""
    exhausted: list[str] = []

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        if exhausted or getattr(body, "model", "") != "m01" or body.key.split("/")[1] != kind:
            return None
        exhausted.append(body.key)
        return Failure(kind=FailureKind.OUT_OF_MEMORY, message="killed for memory")

    scenario = Scenario(
        holdings=own_partition(workers),
        outcome=outcome,
        unit_time=lambda body, worker: UNIT_S,
        devices={f"worker-{number}": 2 for number in range(workers)},
    )
    simulation = Simulation(
        scenario,
        request(2, 3),
        plan(2, workers, validated=True),
        neighbours=[neighbour("other", 12, 12, workers=workers)],
        most_open=2,
    )

    simulation.run()
    logs = {name: simulation.store.events(name) for name in simulation.cores}
    owner, failed = next((n, e) for n, log in logs.items() for e in log if isinstance(e, TaskFailed))
    given = [
        e for e in logs[owner] if isinstance(e, TaskAssigned) and e.task == failed.task and e.attempt == 2
    ]
    (again,) = given
    assert again.time - failed.time <= PATIENCE_S + 3 * UNIT_S
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
