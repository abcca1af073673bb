"""The best schedule that a policy, the planner or an exact solver finds for a problem in a given time.

``python -m research schedule`` calls it. This module decides the order of the methods and whether an answer is optimal.
The validator checks every answer, and an answer is optimal only with a proven bound.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cerebro.errors import InstanceError
from cerebro.scheduling.dispatch import dispatch
from cerebro.scheduling.dispatch_state import DispatchState
from cerebro.scheduling.exact import solve_exact
from cerebro.scheduling.planning.plan_table import plan_tables
from cerebro.scheduling.planning.planner import plan
from cerebro.scheduling.policies import DEFAULT_POLICY, POLICIES, Policy
from cerebro.scheduling.policies.critical_first import CriticalFirst
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.schedule import Placement, Schedule
from cerebro.scheduling.validator import validate

AUTO, PLANNER = "auto", "planner"
EXACT = ("cp-sat", "gurobi")
METHODS = (AUTO, *POLICIES, PLANNER, *EXACT)
"""Values of `policy` for `solve`."""

DEFAULT_TIME_LIMIT_S = 10.0
_PLANNER_S = 2.0
_LEAST_S = 0.01
"""Minimum seconds for an exact solver requested by name after the time limit."""
_ROUNDING = 1e-9
"""Relative tolerance within which a makespan meets a bound; both are sums of floats."""


@dataclass(frozen=True, kw_only=True)
class Solution:
    """A schedule and its proofs.

    Attributes:
        schedule: a valid schedule.
        lower_bound: seconds; no schedule of the problem is shorter.
        is_optimal: True if proven: the makespan meets a bound, or an exact solver has searched everything.
        source: the policy, planner or solver that found it.
        seconds: time to compute it.
        note: a message for people, such as an exceeded time limit or a missing solver; "" without one.
    """

    schedule: Schedule
    lower_bound: float
    is_optimal: bool
    source: str
    seconds: float
    note: str = ""


def solve(
    problem: Problem, *, policy: str | None = None, time_limit_s: float = DEFAULT_TIME_LIMIT_S, seed: int = 0
) -> Solution:
    """Schedule a problem.

    Args:
        problem: any problem.
        policy: one of `METHODS`. ``auto``, the default, plans, and calls an exact solver if the bound is not met and
            time remains. An exact solver by name starts from the default dispatch policy's schedule. A dispatch policy
            runs on each suggested table of parallel plans, and the shortest schedule wins.
        time_limit_s: seconds of search; afterwards the best schedule found is returned.
        seed: seed of all random choices.

    Raises:
        InstanceError: the policy is unknown, or the time limit is invalid.
        SolverUnavailableError: a solver requested by name is not installed, lacks a licence for the problem, or does
            not accept it.
        ScheduleError: the schedule is invalid, which is a bug in Cerebro, not in the problem.
    """
    method = AUTO if policy is None else policy
    if method not in METHODS:
        raise InstanceError(f"there is no policy {method!r}: choose one of {', '.join(METHODS)}")
    if not math.isfinite(time_limit_s) or time_limit_s <= 0:
        raise InstanceError(f"the time limit is {time_limit_s} s, expected a finite number above 0")
    started = time.monotonic()
    if method in POLICIES:
        found = _dispatched(problem, method, started + time_limit_s, seed)
    elif method in EXACT:
        hint = _dispatched(problem, DEFAULT_POLICY, started + time_limit_s, seed)
        found = _exact(problem, method, started + time_limit_s, hint)
    else:
        found = _planned(problem, min(_PLANNER_S, time_limit_s), seed)
        if method == AUTO and not found.is_optimal and time.monotonic() < started + time_limit_s:
            found = _refined(problem, started + time_limit_s, found)
    report = validate(problem, found.schedule).check()
    bound = min(max(report.lower_bound, found.lower_bound), report.makespan)
    return replace(
        found,
        lower_bound=bound,
        is_optimal=found.is_optimal or report.makespan <= bound * (1 + _ROUNDING),
        seconds=time.monotonic() - started,
    )


# --- the ways -----------------------------------------------------------------------------------


class _InTime:
    """A policy until the time limit, then critical first, which takes almost no time."""

    def __init__(self, policy: Policy, until: float) -> None:
        self.is_late = False
        self._policy, self._until = policy, until

    def choose(self, state: DispatchState, workers: Sequence[int], rng: random.Random) -> Placement | None:
        """Return the policy's choice before the time limit, then critical first's."""
        if not self.is_late and time.monotonic() >= self._until:
            self.is_late, self._policy = True, CriticalFirst()
        return self._policy.choose(state, workers, rng)


def _dispatched(problem: Problem, name: str, until: float, seed: int) -> Solution:
    """Return the policy's shortest schedule over the plan tables that the time allows."""
    policy = _InTime(POLICIES[name], until)
    schedules: list[Schedule] = []
    for plan_table in plan_tables(problem).values():
        if not (schedules and policy.is_late):
            schedules.append(dispatch(problem.with_parallel_plans(plan_table), policy, seed=seed))
    note = (
        "the time limit was reached: the remaining decisions are critical first's" if policy.is_late else ""
    )
    return _unproven(min(schedules, key=lambda schedule: schedule.makespan), 0.0, name, note)


def _planned(problem: Problem, time_limit_s: float, seed: int) -> Solution:
    found = plan(problem, time_limit_s=time_limit_s, seed=seed)
    solution = _unproven(found.schedule, found.lower_bound, PLANNER)
    if not solution.is_optimal and found.seconds >= time_limit_s:
        return replace(solution, note=f"stopped after {time_limit_s:g} s with the best schedule found")
    return solution


def _refined(problem: Problem, until: float, planned: Solution) -> Solution:
    """Return the better of the plan and an exact solver's schedule."""
    found = _exact(problem, AUTO, until, planned)
    if found.schedule.makespan < planned.schedule.makespan * (1 - _ROUNDING):
        return found
    return replace(found, schedule=planned.schedule, source=PLANNER)


def _exact(problem: Problem, solver: str, until: float, hint: Solution) -> Solution:
    left = max(_LEAST_S, until - time.monotonic())
    found = solve_exact(problem, time_limit_s=left, hint=hint.schedule, solver=solver)
    return Solution(
        schedule=found.schedule or hint.schedule,
        lower_bound=max(found.lower_bound, hint.lower_bound),
        is_optimal=found.is_optimal,
        source=found.solver,
        seconds=found.seconds,
        note=f"{found.solver}: {found.note}" if found.note else "",
    )


def _unproven(schedule: Schedule, bound: float, source: str, note: str = "") -> Solution:
    """Return a heuristic's answer; only a bound that it meets can prove it optimal."""
    is_optimal = schedule.makespan <= bound * (1 + _ROUNDING)
    return Solution(
        schedule=schedule, lower_bound=bound, is_optimal=is_optimal, source=source, seconds=0.0, note=note
    )
