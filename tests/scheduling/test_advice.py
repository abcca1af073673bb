"""Advice: follow the plan or dispatch, whichever finishes sooner at the measured noise."""

from __future__ import annotations

import random

from hypothesis import given, settings

from cerebro.scheduling.planning.advice import choose
from cerebro.scheduling.planning.planner import plan
from cerebro.scheduling.problem import Problem, open_shop
from tests.scheduling.instances import problems
from tests.scheduling.ticking import Ticking


def near_equal(models: int, workers: int, seed: int) -> Problem:
    """Generate models within 15 % and workers within 5 % of each other."""
    rng = random.Random(seed)
    speeds = [rng.uniform(0.95, 1.05) for _ in range(workers)]
    return open_shop([[rng.uniform(0.85, 1.15) * speed for speed in speeds] for _ in range(models)])


@settings(deadline=None, max_examples=20)
@given(problem=problems(max_gpus=2, max_parallel_plans=2))
def test_without_noise_a_plan_is_kept(problem: Problem) -> None:
    """A plan takes its stated time; dispatch is advised only if it is as short."""
    found = plan(problem, time_limit_s=60, clock=Ticking())
    advice = choose(problem, found, sigma=0.0)
    assert advice.samples == 1
    assert advice.follow == (advice.planned_s < advice.dispatched_s)


def test_as_many_models_as_workers_are_planned_at_little_noise() -> None:
    """The rotation's pattern is worth the waiting."""
    problem = near_equal(8, 8, seed=1)
    advice = choose(problem, plan(problem, time_limit_s=1000, clock=Ticking()), sigma=0.05)
    assert advice.follow
    assert advice.planned_s < advice.dispatched_s


def test_many_models_are_dispatched_at_much_noise() -> None:
    """With many models to choose from, a worker never waits."""
    problem = near_equal(24, 6, seed=1)
    advice = choose(problem, plan(problem, time_limit_s=200, clock=Ticking()), sigma=0.3)
    assert not advice.follow
