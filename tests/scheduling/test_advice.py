"""Advice: follow the plan or dispatch, whichever finishes sooner at the measured noise."""

from __future__ import annotations

import random

from cerebro.scheduling.planning.advice import mean_makespans
from cerebro.scheduling.planning.planner import plan
from cerebro.scheduling.policies import DEFAULT_POLICY, POLICIES
from cerebro.scheduling.policies.following import Following
from cerebro.scheduling.problem import Problem
from research.problems import open_shop
from tests.scheduling.ticking import Ticking


def near_equal(models: int, workers: int, seed: int) -> Problem:
    """Generate models within 15 % and workers within 5 % of each other."""
    rng = random.Random(seed)
    speeds = [rng.uniform(0.95, 1.05) for _ in range(workers)]
    return open_shop([[rng.uniform(0.85, 1.15) * speed for speed in speeds] for _ in range(models)])


def means(problem: Problem, *, time_limit_s: float, sigma: float) -> tuple[float, float]:
    """Return the mean makespans of the plan and of dispatch."""
    found = plan(problem, time_limit_s=time_limit_s, clock=Ticking())
    policies = {"planned": Following.of(found.schedule), "dispatched": POLICIES[DEFAULT_POLICY]}
    by_policy, _ = mean_makespans(problem, policies, sigma=sigma)
    return by_policy["planned"], by_policy["dispatched"]


def test_planning_wins_at_little_noise_with_as_many_models_as_workers() -> None:
    """The rotation's pattern is worth the waiting."""
    planned_s, dispatched_s = means(near_equal(8, 8, seed=1), time_limit_s=1000, sigma=0.05)
    assert planned_s < dispatched_s


def test_dispatch_wins_at_much_noise_with_many_models() -> None:
    """With many models to choose from, a worker never waits."""
    planned_s, dispatched_s = means(near_equal(24, 6, seed=1), time_limit_s=200, sigma=0.3)
    assert planned_s >= dispatched_s
