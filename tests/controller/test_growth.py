"""Cost of decisions with many models and workers, in operations, independent of the machine."""

from __future__ import annotations

from typing import Any

import pytest

from cerebro.contract.events import (
    RunRequested,
    TaskAssigned,
    TaskStarted,
    WorkerJoined,
)
from cerebro.contract.records import ExperimentRecord, Locator, Locators, Replica
from cerebro.contract.rest import api
from controller.decisions.core import Core
from controller.scaling.cluster_snapshot import ClusterSnapshot, WorkerView
from research.simulation.scenario import DATASET
from tests.controller.counting import steps
from tests.controller.test_core import plan, request

RECORD = ExperimentRecord(name="one", locators=Locators(train=Locator(metadata="train.csv")))


def joined(number: int, devices: int = 1) -> WorkerJoined:
    return WorkerJoined(
        worker=f"worker-{number}",
        incarnation="a",
        weight=1.0,
        kinds=("train",),
        replicas=(Replica(dataset=DATASET, partition=number),),
        devices=devices,
    )


def begun(models: int, workers: int, *, epochs: int = 1, validated: bool = False, devices: int = 1) -> Core:
    """A started fit without assigned tasks."""
    core = Core(RECORD)
    core.apply(RunRequested(run="fit-1", request=request(models, epochs)))
    for number in range(workers):
        core.apply(joined(number, devices))
    core.apply(plan(models, workers, validated=validated))
    return core


def snapshot(core: Core) -> ClusterSnapshot:
    return ClusterSnapshot(
        workers={
            name: WorkerView(incarnation="a", weight=1.0, kinds=tuple(worker.kinds), replicas=())
            for name, worker in core.state.workers.items()
        }
    )


def test_many_equal_idle_workers_get_a_sub_epoch_each() -> None:
    """Each worker gets a sub-epoch, and twice the size costs four times as much, not sixteen times."""
    costs = {}
    for size in (40, 80):
        core = begun(size, size)
        cluster = snapshot(core)
        assert core.fit is not None
        costs[size] = steps(lambda core=core, cluster=cluster: core.decide(cluster))  # type: ignore[misc]
        given = [step for step in core.decide(cluster) if isinstance(step, api.Assign)]
        assert len({step.worker for step in given}) == size
        assert len({step.task.split("/")[2] for step in given}) == size
    assert costs[80] < 4.5 * costs[40]


def busy(models: int, workers: int, *, epochs: int = 2, validated: bool = False, devices: int = 1) -> Core:
    """A fit with a running and a queued sub-epoch on each device."""
    core = begun(models, workers, epochs=epochs, validated=validated, devices=devices)
    now = 0.0
    for _ in range(2):
        for step in core.decide(snapshot(core)):
            assert isinstance(step, api.Assign)
            values: dict[str, Any] = {"task": step.task, "attempt": step.attempt, "worker": step.worker}
            core.apply(TaskAssigned(**values, devices=step.devices, time=now))
            if core.state.workers[step.worker].is_next(step.task):
                core.apply(TaskStarted(**values, time=now))
    return core


@pytest.mark.parametrize(("validated", "devices"), [(False, 1), (True, 1), (False, 2)])
def test_a_decision_with_busy_workers_costs_the_same_for_more_models(validated: bool, devices: int) -> None:
    """The controller does not scan all models, and with several parallel plans it does not repeat a decision
    without news."""
    costs = {}
    for models in (100, 1000):
        core = busy(models, 4, validated=validated, devices=devices)
        cluster = snapshot(core)
        assert core.decide(cluster) == []
        costs[models] = steps(lambda core=core, cluster=cluster: core.decide(cluster))  # type: ignore[misc]
    assert costs[1000] <= costs[100] + 10
