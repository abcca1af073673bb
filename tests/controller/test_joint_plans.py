"""Plans that choose parallel plans: planner questions, answers, and runs that follow them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import SchedulePlanned, TaskAssigned
from cerebro.contract.parallel_plans import SINGLE, ParallelPlan
from cerebro.contract.rest import api
from cerebro.contract.tasks.bodies import TaskBody, TrainTask
from cerebro.scheduling.planning import advice
from cerebro.scheduling.problem import Problem
from cerebro.state import RunState
from cerebro.state.experiment import fold
from controller.decisions.core import Core
from controller.planning.planner_query import from_json, planner_query, to_json
from research.simulation.cluster import Simulation
from research.simulation.inline import InlinePlanner
from research.simulation.scenario import EXPERIMENT, Scenario
from tests.controller.test_core import (
    assert_complete,
    assert_exclusive,
    own_partition,
    plan,
    request,
    several_devices,
)
from tests.controller.test_fit_dispatch import core_of
from tests.scheduling.instances import problems
from tests.state.stories import Story, joined

DDP = ParallelPlan(technique="ddp", size=2)


@pytest.fixture(autouse=True)
def few_dry_runs() -> Iterator[None]:
    """Reduce the dry runs, which take most of the test time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(advice, "_MAX_SUB_EPOCHS", 300)
        yield


def simulate(
    models: int, *, parallel_plans: tuple[ParallelPlan, ...], speed_up: float, epochs: int = 4
) -> Simulation:
    """Return a finished run on two workers with two devices each; a sub-epoch takes 10 s on one device."""

    def sub_epoch_time(body: TaskBody, worker: str) -> float:
        assert isinstance(body, TrainTask)
        return 10.0 / speed_up if body.parallel_plan is not None and body.parallel_plan.size > 1 else 10.0

    scenario = Scenario(
        replicas=own_partition(2), devices=several_devices(2, 2), sub_epoch_time=sub_epoch_time
    )
    simulation = Simulation(
        scenario,
        request(models, epochs),
        plan(models, 2, parallel_plans=parallel_plans),
        InlinePlanner(plan_s=0.1, solve_s=0.1),
    )
    simulation.run()
    return simulation


@settings(deadline=None, max_examples=30)
@given(problem=problems(max_gpus=3, max_parallel_plans=3))
def test_a_problem_with_parallel_plans_round_trips_through_json(problem: Problem) -> None:
    """Parallel plans, GPUs and fixed times survive; names become numbers."""
    again = from_json(to_json(problem))
    assert (again.parallel_plans, again.gpus, again.gpu_ready) == (
        problem.parallel_plans,
        problem.gpus,
        problem.gpu_ready,
    )


def test_a_planner_query_has_the_parallel_plans_with_known_times() -> None:
    """These are the current plan and those measured by a sub-epoch or trial, if a worker has enough devices."""
    story = Story(workers=0)
    story.append(joined(0, partitions=(0,), devices=2), joined(1, partitions=(1,), devices=1))
    story.fit(models=2, partitions=2)
    fit = core_of(story).fit
    assert fit is not None
    run = core_of(story).state.runs["fit-1"]
    assert run.plan is not None
    fit.parallel_plans._options = {0: (SINGLE, DDP), 1: (SINGLE, DDP)}
    assert fit.parallel_plans.known() == ((), ())
    fit.times.estimates.seed(
        "m00", "worker-0", rows=fit.mean_rows, seconds=6.0, fixed_s=1.5, technique=DDP.label
    )
    query = planner_query(fit)
    assert query is not None
    found = [
        [[parallel_plan.technique for parallel_plan in parallel_plans] for parallel_plans in row]
        for row in query.problem.parallel_plans
    ]
    assert found == [[["", "ddp-2"], [""]], [[""], [""]]]
    assert query.problem.parallel_plans[0][0][1].sub_epoch_s(2.0) == pytest.approx(2 * 6.0 + 1.5)
    assert query.present == [[0, 0], [0, 0]]
    assert query.named([[1, 0], [0, 0]]) == {"m00": {"worker-0": DDP, "worker-1": SINGLE}}
    assert query.table(query.named([[1, 0], [0, 0]])) == [[1, 0], [0, 0]]


def test_planner_and_dispatch_use_the_fixed_time_of_sub_epochs() -> None:
    """Fixed times per model, learned from two sizes, are in the dispatch state and in the planner's question."""
    rows = {0: 10, 1: 40}

    def fixed_s(body: TaskBody, worker: str) -> float:
        return 3.0 if getattr(body, "model", "") == "m00" else 0.5

    def sub_epoch_time(body: TaskBody, worker: str) -> float:
        assert isinstance(body, TrainTask)
        return fixed_s(body, worker) + 0.1 * rows[body.partition]

    scenario = Scenario(replicas=own_partition(2), sub_epoch_time=sub_epoch_time, fixed_s=fixed_s)
    started = plan(2, 2)
    sized = started.plan.model_copy(update={"partitions": rows})
    simulation = Simulation(scenario, request(2, 3), started.model_copy(update={"plan": sized}))
    simulation.run()
    core, query = Core(simulation.core.record), None
    for event in simulation.log:
        core.apply(event)
        if core.fit is not None and core.fit.times.estimates.observations >= 6:
            query = planner_query(core.fit) or query
            for model, fixed in enumerate((3.0, 0.5)):
                for partition, count in rows.items():
                    expected = fixed + 0.1 * count
                    found = core.fit.dispatch_state.seconds(model, partition, partition)
                    assert found == pytest.approx(expected, rel=0.01)
    assert query is not None
    for name, parallel_plans in zip(query.models, query.problem.parallel_plans, strict=True):
        assert parallel_plans[0][0].fixed == pytest.approx(3.0 if name == "m00" else 0.5)


@pytest.mark.slow
@settings(deadline=None, max_examples=8)
@given(models=st.integers(1, 5), speed_up=st.sampled_from((1.2, 1.9)))
def test_a_run_with_several_parallel_plans_is_complete_and_exclusive(models: int, speed_up: float) -> None:
    """For any plan, each model trains on each partition, and each device runs one sub-epoch at a time."""
    simulation = simulate(models, parallel_plans=(DDP, SINGLE), speed_up=speed_up, epochs=2)
    state = fold(EXPERIMENT, simulation.log)
    assert state.runs["fit-1"].state is RunState.FINISHED
    assert_complete(state, epochs=2, partitions=2)
    assert_exclusive(simulation)


def test_the_parallel_plans_of_a_plan_are_followed() -> None:
    """They apply after planning, on the plan's workers; other sub-epochs use the default."""
    scenario = Scenario(
        replicas=own_partition(2), devices=several_devices(2, 2), sub_epoch_time=lambda body, worker: 10.0
    )
    fit_request = request(2, 4).model_copy(update={"trials": "never"})
    simulation = Simulation(scenario, fit_request, plan(2, 2, parallel_plans=(SINGLE, DDP)))
    event = SchedulePlanned(
        run="fit-1",
        source="test",
        order=(),
        parallel_plans={name: {"worker-0": DDP, "worker-1": SINGLE} for name in ("m00", "m01")},
        makespan_s=1.0,
        dispatch_s=1.0,
        lower_bound_s=0.0,
        seconds=0.0,
    )

    def note() -> None:
        term = simulation.store.lead("controller#0", 1e9).term
        step = api.DecideRequest(term=term, after=simulation.core.state.seq, steps=(api.Note(event=event),))
        simulation.store.decide(EXPERIMENT, step)

    simulation._at(25.0, note)
    state = simulation.run()
    assert_complete(state, epochs=4, partitions=2)
    assert_exclusive(simulation)
    planned = next(e.seq for e in simulation.log if isinstance(e, SchedulePlanned))
    given = [e for e in simulation.log if isinstance(e, TaskAssigned)]
    assert all(e.parallel_plan is None for e in given if e.seq < planned or e.worker == "worker-1")
    after = [e for e in given if e.seq > planned and e.worker == "worker-0"]
    assert after
    assert all(e.parallel_plan == DDP and e.devices == (0, 1) for e in after)
