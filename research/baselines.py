"""What people do instead of choosing technique, devices and order together: to compare plans with.

Each is a choice of parallel plans, made once, and a policy that decides on the order. Saturn (arXiv 2309.01226,
section 5) compares with the same four.
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
    """Each sub-epoch takes all GPUs of its node, by the fastest way; models come in a random order."""
    return _random_order(
        problem,
        _chosen(
            problem, lambda m, w: max(parallel_plan.gpus for parallel_plan in problem.parallel_plans[m][w])
        ),
        seed,
    )


def fewest_devices(problem: Problem, seed: int = 0) -> Schedule:
    """Each sub-epoch takes as few GPUs as its model fits on; models come in a random order."""
    return _random_order(
        problem,
        _chosen(
            problem, lambda m, w: min(parallel_plan.gpus for parallel_plan in problem.parallel_plans[m][w])
        ),
        seed,
    )


def optimus(problem: Problem, seed: int = 0) -> Schedule:
    """All models at once, GPUs to who gains most by them (Optimus, Peng et al. 2018); the longest model goes first."""
    table = plan_tables(problem)
    return dispatch(
        problem.with_parallel_plans(table.get("fill", table["full node"])), POLICIES["lrptw"], seed=seed
    )


def random_parallel_plans(problem: Problem, seed: int = 0) -> Schedule:
    """Any way that fits, in a random order."""
    rng = random.Random(f"ways {seed}")
    table = [
        [rng.randrange(len(parallel_plans)) if parallel_plans else NOT_HERE for parallel_plans in row]
        for row in problem.parallel_plans
    ]
    return _random_order(problem, table, seed)


def by_policy(problem: Problem) -> Schedule:
    """The longest model first, with the best of the tables that fix all ways beforehand: what an exact solver may start
    from that is to be compared with a plan."""
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
"""By name; the same seed gives the same schedule."""


def _chosen(problem: Problem, gpus: Callable[[int, int], int]) -> PlanTable:
    """The fastest parallel plan on that many GPUs of a worker."""
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
