"""`solve`: validated schedules, called optimal only with proof."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from cerebro.scheduling.policies import POLICIES
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.validator import validate
from research.problems import open_shop
from research.solve import METHODS, solve
from tests.scheduling.brute import optimal_makespan
from tests.scheduling.instances import multi_gpu_problems, open_shops, problems

NEARLY_EQUAL = open_shop([[100.0 + (7 * i + 3 * j) % 11 for j in range(7)] for i in range(7)])


@given(problems(max_models=3, max_gpus=2, max_parallel_plans=2))
@settings(deadline=None, max_examples=25)
def test_every_problem_gets_a_valid_schedule(problem: Problem) -> None:
    """Each dispatch policy and the planner give a schedule without violations and no shorter than the bound."""
    for method in (*POLICIES, "planner"):
        found = solve(problem, policy=method, time_limit_s=0.05)
        assert validate(problem, found.schedule).violations == ()
        assert found.lower_bound <= found.schedule.makespan
        assert found.source == method


@given(open_shops(max_models=3, max_workers=3))
@settings(deadline=None, max_examples=20)
def test_an_optimal_answer_equals_brute_force(problem: Problem) -> None:
    """With nine sub-epochs at most, planner and solver prove the brute-force optimum."""
    found = solve(problem)
    assert found.is_optimal
    assert found.schedule.makespan == pytest.approx(optimal_makespan(problem))


@pytest.mark.slow
@given(multi_gpu_problems(max_models=2))
@settings(deadline=None, max_examples=15)
def test_parallel_plans_are_part_of_the_optimum(problem: Problem) -> None:
    """Sub-epochs share a worker's GPUs, each with the number that minimises the makespan."""
    found = solve(problem)
    assert found.is_optimal
    assert found.schedule.makespan == pytest.approx(optimal_makespan(problem))


@pytest.mark.parametrize("method", [name for name in METHODS if name != "gurobi"])
def test_an_optimal_answer_meets_the_bound(method: str) -> None:
    """Two models on two workers, crosswise: each method finds 3 s and is named as the source."""
    found = solve(open_shop([[1.0, 2.0], [2.0, 1.0]]), policy=method)
    assert (found.schedule.makespan, found.lower_bound, found.is_optimal) == (3, 3, True)
    assert found.source == {"auto": "planner"}.get(method, method)


def test_an_expired_time_limit_keeps_the_best_schedule_with_a_note() -> None:
    """With almost no time, the answer is valid and makes no unproven claim."""
    found = solve(NEARLY_EQUAL, policy="monte-carlo", time_limit_s=1e-6)
    assert validate(NEARLY_EQUAL, found.schedule).violations == ()
    assert found.note == "the time limit was reached: the remaining decisions are critical first's"
    assert found.is_optimal == (found.schedule.makespan <= found.lower_bound * (1 + 1e-9))
