"""Answers to the advisor's questions: plans, exact solutions, and whether an order beats what a run does now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cerebro.scheduling import advice, planner
from cerebro.scheduling.bounds import lower_bound
from cerebro.scheduling.dispatch import dispatch
from cerebro.scheduling.exact import solve_exact
from cerebro.scheduling.policies import DEFAULT_POLICY, POLICIES
from cerebro.scheduling.policies.following import Entry, Following
from cerebro.scheduling.policies.policy import Policy
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.schedule import Schedule
from controller.advisor.planner_query import from_json, order_from_json

PLAN_S = 2.0
SOLVE_S = 30.0
"""Time limit of the exact solver; a longer one proves little more (docs/scheduling.md)."""

_SOLVE_SHARE = 0.25
"""Of the time that is left to run: what is found after the last unit helps nobody."""

_SOLVABLE = 600
"""Units beyond which an exact solver finds nothing that the planner did not."""


def answer(message: Mapping[str, Any], *, plan_s: float = PLAN_S, solve_s: float = SOLVE_S) -> dict[str, Any]:
    """The answer to one question.

    Args:
        plan_s, solve_s: time limits of the planner and of the exact solver.
        message: ``ask`` (`plan`, `solve`, `judge`), ``problem``, ``sigma``, the order that is ``followed``, if one is,
            and the ``order`` to be judged.

    Returns:
        ``planned_s``, ``dispatch_s`` and ``followed_s`` (`None` if nothing is followed) simulated at that noise, and
        ``lower_bound``; of a plan also its ``order``, ``source``, the ``seconds`` it took, and whether it
        ``is_last``: nothing better can be found, or not by these means.
    """
    problem = from_json(message["problem"])
    followed = order_from_json(message["followed"]) if "followed" in message else None
    sigma = float(message["sigma"])
    if message["ask"] == "judge":
        return _compared(problem, order_from_json(message["order"]), followed, sigma)
    if message["ask"] == "plan":
        found = planner.plan(problem, time_limit_s=plan_s)
        schedule, is_last = found.schedule, not found.gap or problem.num_units > _SOLVABLE
        told = {"source": f"planner/{found.source}", "seconds": found.seconds, "is_last": is_last}
    else:
        schedule, told = _solved(problem, followed, solve_s)
    order = tuple(Entry(u.worker, u.model, u.epoch, u.partition, u.start) for u in schedule.units)
    return {**_compared(problem, order, followed, sigma), **told, "order": order}


def _solved(
    problem: Problem, followed: Sequence[Entry] | None, limit_s: float
) -> tuple[Schedule, dict[str, Any]]:
    """What an exact solver makes of what the run does now."""
    present = dispatch(problem, Following(followed) if followed else POLICIES[DEFAULT_POLICY])
    limit_s = min(limit_s, _SOLVE_SHARE * present.makespan)
    solved = solve_exact(problem, time_limit_s=limit_s, hint=present)
    told = {"source": solved.solver, "seconds": solved.seconds, "is_last": True}
    return solved.schedule or present, told


def _compared(
    problem: Problem, order: Sequence[Entry], followed: Sequence[Entry] | None, sigma: float
) -> dict[str, Any]:
    policies: dict[str, Policy] = {"planned_s": Following(order), "dispatch_s": POLICIES[DEFAULT_POLICY]}
    if followed:
        policies["followed_s"] = Following(followed)
    means, _ = advice.mean_makespans(problem, policies, sigma=sigma)
    return {"followed_s": None, **means, "lower_bound": lower_bound(problem)}
