"""What a decision costs with many models and workers: operations are counted, so that it is the same on any machine."""

from __future__ import annotations

from cerebro.contract import api
from cerebro.contract.events import RunRequested, WorkerJoined
from cerebro.contract.records import ExperimentRecord, Holding, Locator, Locators
from controller.core import Core
from controller.crew import Seen, World
from controller.simulation.scenario import DATASET
from tests.controller.counting import calls
from tests.controller.test_core import plan, request

RECORD = ExperimentRecord(name="one", locators=Locators(train=Locator(metadata="train.csv")))


def joined(number: int) -> WorkerJoined:
    return WorkerJoined(
        worker=f"worker-{number}",
        incarnation="a",
        weight=1.0,
        kinds=("train",),
        holdings=(Holding(dataset=DATASET, partition=number),),
    )


def begun(models: int, workers: int, *, epochs: int = 1) -> Core:
    """A fit that has started, and nothing of it is assigned."""
    core = Core(RECORD)
    core.apply(RunRequested(run="fit-1", request=request(models, epochs)))
    for number in range(workers):
        core.apply(joined(number))
    core.apply(plan(models, workers))
    return core


def world(core: Core) -> World:
    return World(
        workers={
            name: Seen(incarnation="a", weight=1.0, kinds=tuple(worker.kinds), holdings=())
            for name, worker in core.state.workers.items()
        }
    )


def test_many_equal_idle_workers_get_a_unit_each() -> None:
    """As many models as workers, all alike: everybody is served, and once twice as many are there it costs four times
    as much, not sixteen times."""
    costs = {}
    for size in (40, 80):
        core = begun(size, size)
        seen = world(core)
        assert core.board is not None
        costs[size] = calls(lambda core=core, seen=seen: core.decide(seen))  # type: ignore[misc]
        steps = [step for step in core.decide(seen) if isinstance(step, api.Assign)]
        assert len({step.worker for step in steps}) == size
        assert len({step.task.split("/")[2] for step in steps}) == size
    assert costs[80] < 4.5 * costs[40]
