"""The gain from planning again when parallel plans take other times than the planner expected.

A run is planned with wrong times, with a separate error for each parallel plan of a model, and executed with the true
times. A second planning knows the true times of the plans that have run. Saturn plans again at intervals and relaunches
all jobs; here only unstarted sub-epochs change (docs/decisions/0038).
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import NamedTuple

from cerebro.scheduling.dispatch import dispatch
from cerebro.scheduling.planning.plan_table import of_schedule
from cerebro.scheduling.planning.planner import plan
from cerebro.scheduling.policies.following import Following
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.schedule import Schedule

_WORTH = 0.01
"""A new plan is used if its expected end is earlier by this share, as in live runs."""

_Key = tuple[int, str, int]
"""(model, technique, GPUs), the key of a time."""


class Worth(NamedTuple):
    """Makespans in seconds: planned once, planned repeatedly, and planned with the true times."""

    once: float
    again: float
    knowing: float


def worth(problem: Problem, *, sigma: float, times: int, seed: int, steps: float = 0.3) -> Worth:
    """Compare planning once with planning `times` times, at equal shares of the remaining time.

    Args:
        problem: problem with the expected times, over one epoch.
        sigma: deviation of the logarithm of true over expected time, per parallel plan of a model.
        seed: seed of these errors and of the planner.
        steps: seconds for each plan.
    """
    rng = random.Random(f"errors {seed}")
    keys = {
        (m, parallel_plan.technique, parallel_plan.gpus)
        for m, row in enumerate(problem.parallel_plans)
        for parallel_plans in row
        for parallel_plan in parallel_plans
    }
    factors = {key: math.exp(rng.gauss(0.0, sigma)) for key in sorted(keys)}
    truth = _scaled(problem, factors)
    return Worth(
        once=_followed(problem, truth, steps, seed).makespan,
        again=_again(problem, factors, times, steps, seed),
        knowing=_followed(truth, truth, steps, seed).makespan,
    )


def _followed(estimate: Problem, truth: Problem, seconds: float, seed: int) -> Schedule:
    """Return the true schedule of a plan with the expected times."""
    return _run(truth, plan(estimate, time_limit_s=seconds, seed=seed).schedule)


def _run(problem: Problem, planned: Schedule) -> Schedule:
    """Return the schedule of the problem if the plan is followed."""
    return dispatch(problem.with_parallel_plans(of_schedule(problem, planned)), Following.of(planned))


def _again(estimate: Problem, factors: dict[_Key, float], times: int, seconds: float, seed: int) -> float:
    passed, known = 0.0, dict[_Key, float]()
    truth = _scaled(estimate, factors)
    present: Schedule | None = None
    for number in range(times, 0, -1):
        believed = _scaled(estimate, known)
        found = plan(believed, time_limit_s=seconds, seed=seed).schedule
        if present is None or found.makespan < (1 - _WORTH) * _run(believed, present).makespan:
            present = found
        run = _run(truth, present)
        at = run.makespan / number
        if number == 1 or all(sub_epoch.start < at for sub_epoch in run.sub_epochs):
            return passed + run.makespan
        passed += at
        for sub_epoch in run.sub_epochs:
            if sub_epoch.end <= at:
                key = (sub_epoch.model, sub_epoch.technique, sub_epoch.gpus)
                known[key] = factors[key]
        estimate, truth = rest(estimate, run, at), rest(truth, run, at)
        present = Schedule.of(
            sub_epoch._replace(start=sub_epoch.start - at, end=sub_epoch.end - at)
            for sub_epoch in present.sub_epochs
        )
    raise AssertionError("the last plan is followed to its end")


def rest(problem: Problem, schedule: Schedule, at: float) -> Problem:
    """Return the remaining problem of one epoch at a time, after following the schedule until then."""
    left = list(problem.remaining_partitions)
    models = [max(0.0, ready - at) for ready in problem.model_ready]
    busy = [[ready - at for ready in gpus if ready > at] for gpus in problem.gpu_ready]
    for sub_epoch in schedule.sub_epochs:
        if sub_epoch.start < at:
            left[sub_epoch.model] &= ~(1 << sub_epoch.partition)
            models[sub_epoch.model] = max(models[sub_epoch.model], sub_epoch.end - at)
            if sub_epoch.end > at:
                busy[sub_epoch.worker] += [sub_epoch.end - at] * sub_epoch.gpus
    ready = (
        tuple([0.0] * (count - len(ends)) + ends) for count, ends in zip(problem.gpus, busy, strict=True)
    )
    return replace(
        problem, remaining_partitions=tuple(left), model_ready=tuple(models), gpu_ready=tuple(ready)
    )


def _scaled(problem: Problem, factors: dict[_Key, float]) -> Problem:
    """Return the problem with these times multiplied."""
    return replace(
        problem,
        parallel_plans=tuple(
            tuple(
                tuple(
                    replace(
                        parallel_plan,
                        seconds=parallel_plan.seconds
                        * factors.get((m, parallel_plan.technique, parallel_plan.gpus), 1.0),
                    )
                    for parallel_plan in parallel_plans
                )
                for parallel_plans in row
            )
            for m, row in enumerate(problem.parallel_plans)
        ),
    )
