"""Plans for workers with several devices."""

from __future__ import annotations

from random import Random

import pytest

from cerebro.contract.events import SchedulePlanned
from cerebro.contract.rest import api
from cerebro.contract.tasks.bodies import TaskBody, TrainTask
from cerebro.scheduling.planning import planner
from cerebro.scheduling.validator import validate
from cerebro.state import RunState
from controller.planning.planner_query import PlannerQuery, planner_query
from research.simulation.cluster import Simulation
from research.simulation.scenario import EXPERIMENT, Scenario
from tests.controller.test_core import assert_complete, assert_exclusive, own_partition, plan, request
from tests.scheduling.ticking import Ticking

WORKERS, DEVICES = 4, 2


@pytest.mark.slow
@pytest.mark.parametrize("models", [8, 9, 11])
@pytest.mark.parametrize("at", [1.3, 2.3])
def test_the_predicted_makespan_of_a_plan_is_reached(models: int, at: float) -> None:
    """A plan made during a run with busy devices is exact within 0.5 % without noise."""
    times = Random(models)
    seconds = [times.uniform(8.5, 11.5) for _ in range(models)]
    speeds = [times.uniform(0.95, 1.05) for _ in range(WORKERS)]

    def sub_epoch_time(body: TaskBody, worker: str) -> float:
        assert isinstance(body, TrainTask)
        return seconds[int(body.model[1:])] * speeds[int(worker[-1])]

    scenario = Scenario(
        replicas=own_partition(WORKERS),
        sub_epoch_time=sub_epoch_time,
        devices={f"worker-{number}": DEVICES for number in range(WORKERS)},
    )
    simulation = Simulation(scenario, request(models, 3), plan(models, WORKERS))
    epoch_s = sum(seconds) / DEVICES
    found: list[tuple[PlannerQuery, SchedulePlanned]] = []

    def note() -> None:
        core = simulation.core
        assert core.fit is not None
        core.fit.dispatch_state.now = simulation.now
        query = planner_query(core.fit)
        assert query is not None
        assert any(ready[0] != ready[-1] for ready in query.problem.gpu_ready)
        schedule = planner.plan(query.problem, time_limit_s=30, clock=Ticking()).schedule
        validate(query.problem, schedule).check()
        order = schedule.sub_epochs
        event = SchedulePlanned(
            run="fit-1",
            source="test",
            order=query.planned(order),
            makespan_s=schedule.makespan,
            dispatch_s=schedule.makespan,
            lower_bound_s=0.0,
            seconds=0.0,
        )
        found.append((query, event))
        term = simulation.store.lead("controller#0", 1e9).term
        step = api.DecideRequest(term=term, after=core.state.seq, steps=(api.Note(event=event),))
        simulation.store.decide(EXPERIMENT, step)

    simulation._at(at * epoch_s, note)
    state = simulation.run()
    ((query, event),) = found
    run = state.runs["fit-1"]
    assert run.state is RunState.FINISHED
    assert_complete(state, epochs=3, partitions=WORKERS)
    assert_exclusive(simulation)
    sub_epochs = {(m.id, v.epoch, v.partition): v.ended for m in run.models.values() for v in m.sub_epochs}
    # A plan covers as many epochs as the most advanced model has.
    reached = max(sub_epochs[planned.model, planned.epoch, planned.partition] for planned in event.order)
    assert reached - query.now == pytest.approx(event.makespan_s, rel=0.005)
