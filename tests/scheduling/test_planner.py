"""The planner: valid plans within the time limit, no worse than dispatch."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.scheduling.dispatch import dispatch
from cerebro.scheduling.planning.plan_table import plan_tables
from cerebro.scheduling.planning.planner import Plan, plan
from cerebro.scheduling.policies import POLICIES
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.validator import validate
from research.problems import multi_gpu, open_shop
from tests.scheduling.brute import optimal_makespan
from tests.scheduling.instances import multi_gpu_problems, open_shops, problems
from tests.scheduling.ticking import Ticking


def planned(problem: Problem, *, steps: int, seed: int = 0, target: float | None = None) -> Plan:
    """Plan with a limit of `steps` clock readings."""
    return plan(problem, time_limit_s=steps, seed=seed, target=target, clock=Ticking())


@settings(deadline=None, max_examples=50)
@given(problem=problems(), steps=st.integers(0, 100))
def test_plans_of_half_done_and_replicated_problems_are_valid(problem: Problem, steps: int) -> None:
    """Epochs, replicas, finished sub-epochs and late workers."""
    found = planned(problem, steps=steps)
    report = validate(problem, found.schedule).check()
    assert report.lower_bound == found.lower_bound


@settings(deadline=None, max_examples=30)
@given(problem=problems(max_gpus=4, max_parallel_plans=3, max_epochs=2), steps=st.integers(0, 150))
def test_plans_with_a_choice_of_parallel_plans_are_valid(problem: Problem, steps: int) -> None:
    validate(problem, planned(problem, steps=steps).schedule).check()


@settings(deadline=None, max_examples=30)
@given(problem=problems(max_gpus=2, max_parallel_plans=3), steps=st.integers(0, 60))
def test_a_plan_is_never_worse_than_dispatch(problem: Problem, steps: int) -> None:
    """The planner includes LRPTw's schedule under each fixed plan table."""
    found = planned(problem, steps=steps)
    for table in plan_tables(problem).values():
        dispatched = dispatch(problem.with_parallel_plans(table), POLICIES["lrptw"])
        assert found.schedule.makespan <= dispatched.makespan * (1 + 1e-9)


@settings(deadline=None, max_examples=20)
@given(problem=problems(max_models=8, max_workers=4, max_partitions=4, max_gpus=2, max_parallel_plans=2))
def test_more_steps_never_make_a_plan_worse(problem: Problem) -> None:
    """The same seed gives the same steps, so the best result cannot get worse."""
    makespans = [planned(problem, steps=steps).schedule.makespan for steps in (0, 10, 100)]
    assert makespans == sorted(makespans, reverse=True)


@settings(deadline=None, max_examples=20)
@given(problem=open_shops(max_models=3, max_workers=3))
def test_small_open_shops_are_solved_to_the_optimum(problem: Problem) -> None:
    assert planned(problem, steps=2000).schedule.makespan == pytest.approx(optimal_makespan(problem))


@settings(deadline=None, max_examples=20)
@given(problem=multi_gpu_problems(max_models=2))
def test_small_problems_with_several_gpus_are_solved_well(problem: Problem) -> None:
    """Dispatch with waits for GPUs, over all plan tables, is near the optimum."""
    assert planned(problem, steps=1000).schedule.makespan <= optimal_makespan(problem) * 1.25 + 1e-9


@settings(deadline=None, max_examples=50)
@given(problem=problems(max_models=6), steps=st.integers(0, 40))
def test_no_step_starts_after_the_time_limit(problem: Problem, steps: int) -> None:
    """The planner reads the clock at the start, after each step and at the end."""
    clock = Ticking()
    plan(problem, time_limit_s=steps, clock=clock)
    assert clock.readings <= max(1, steps) + 2


def test_the_same_seed_gives_the_same_plan() -> None:
    """The result depends only on clock and seed."""
    rng = random.Random(1)
    problem = open_shop([[rng.uniform(1, 2) for _ in range(6)] for _ in range(7)])
    assert planned(problem, steps=300, seed=4).schedule == planned(problem, steps=300, seed=4).schedule


@pytest.mark.parametrize("size", [8, 16])
def test_as_many_models_as_workers_with_nearly_equal_times_meet_the_bound(size: int) -> None:
    """The sorted rotation with waits is optimal; dispatch is several per cent worse."""
    rng = random.Random(size)
    speeds = [rng.uniform(0.95, 1.05) for _ in range(size)]
    problem = open_shop([[rng.uniform(0.85, 1.15)] * size for _ in range(size)])
    times = [[problem.seconds(m, 0, 0) * speed for speed in speeds] for m in range(size)]
    found = planned(open_shop(times), steps=2000)
    assert found.gap == 0
    assert dispatch(open_shop(times), POLICIES["lrptw"]).makespan >= found.schedule.makespan


def test_a_plan_with_linear_speed_up_meets_the_bound() -> None:
    """The thesis's six models on nodes of four, two and two GPUs: running on all GPUs of a node costs nothing."""
    nodes = (4, 2, 2)
    runtimes = {
        f"m{i}": {n: {g: seconds * size / g for g in (1, 2, 4) if g <= size} for n, size in enumerate(nodes)}
        for i, seconds in enumerate((300.0, 250.0, 420.0, 180.0, 360.0, 240.0))
    }
    found = planned(multi_gpu(nodes, runtimes), steps=500)
    assert found.gap < 0.01
