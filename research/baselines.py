"""Common practices to compare plans with, which do not choose technique, devices and order together.

Each one chooses parallel plans once, and a policy decides the order. Saturn (arXiv 2309.01226, section 5) uses the same
four.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from cerebro.scheduling.dispatch import dispatch
from cerebro.scheduling.planning.plan_table import NOT_HERE, PlanTable, plan_tables
from cerebro.scheduling.policies import POLICIES
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.schedule import Schedule


def current_practice(problem: Problem, seed: int = 0) -> Schedule:
    """Run each sub-epoch on all GPUs of its node by the fastest plan, models in random order."""
    return _random_order(
        problem,
        _chosen(
            problem, lambda m, w: max(parallel_plan.gpus for parallel_plan in problem.parallel_plans[m][w])
        ),
        seed,
    )


def fewest_devices(problem: Problem, seed: int = 0) -> Schedule:
    """Run each sub-epoch on the fewest GPUs that fit its model, models in random order."""
    return _random_order(
        problem,
        _chosen(
            problem, lambda m, w: min(parallel_plan.gpus for parallel_plan in problem.parallel_plans[m][w])
        ),
        seed,
    )


def optimus(problem: Problem, seed: int = 0) -> Schedule:
    """Run all models at once, the longest first, with each GPU for the model that gains most.

    This is Optimus (Peng et al. 2018).
    """
    table = plan_tables(problem)
    return dispatch(
        problem.with_parallel_plans(table.get("fill", table["full node"])), POLICIES["lrptw"], seed=seed
    )


def random_parallel_plans(problem: Problem, seed: int = 0) -> Schedule:
    """Choose any plan that fits, in random order."""
    rng = random.Random(f"ways {seed}")
    table = [
        [rng.randrange(len(parallel_plans)) if parallel_plans else NOT_HERE for parallel_plans in row]
        for row in problem.parallel_plans
    ]
    return _random_order(problem, table, seed)


def by_policy(problem: Problem) -> Schedule:
    """Schedule the longest model first, with the best table that fixes all plans beforehand.

    An exact solver that is compared with a plan may start from this schedule.
    """
    names = ("full node", "one GPU each", "least GPU time")
    tables = [table for name, table in plan_tables(problem).items() if name in names]
    schedules = [dispatch(problem.with_parallel_plans(table), POLICIES["lrptw"]) for table in tables]
    return min(schedules, key=lambda schedule: schedule.makespan)


BASELINES: dict[str, Callable[[Problem, int], Schedule]] = {
    "current practice": current_practice,
    "fewest devices": fewest_devices,
    "Optimus": optimus,
    "random ways": random_parallel_plans,
}
"""Baselines by name; the same seed gives the same schedule."""


def _chosen(problem: Problem, gpus: Callable[[int, int], int]) -> PlanTable:
    """Choose the fastest parallel plan on the given number of GPUs of each worker."""
    size = problem.mean_size
    return [
        [
            min(
                (s for s, parallel_plan in enumerate(parallel_plans) if parallel_plan.gpus == gpus(m, w)),
                key=lambda s, parallel_plans=parallel_plans: parallel_plans[s].sub_epoch_s(size),  # type: ignore[misc]
                default=NOT_HERE,
            )
            for w, parallel_plans in enumerate(row)
        ]
        for m, row in enumerate(problem.parallel_plans)
    ]


def _random_order(problem: Problem, table: PlanTable, seed: int) -> Schedule:
    return dispatch(problem.with_parallel_plans(table), POLICIES["random"], seed=seed)
