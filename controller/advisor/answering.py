"""Answers to the advisor's questions: plans, exact solutions, and which of plan and dispatch is better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cerebro.scheduling import advice, planner
from cerebro.scheduling.bounds import lower_bound
from cerebro.scheduling.exact import solve_exact
from cerebro.scheduling.policies.following import Entry, Following
from cerebro.scheduling.problem import Problem
from controller.advisor.question import from_json, order_from_json

PLAN_S = 2.0
SOLVE_S = 30.0
"""For the exact solver: long enough for what can be proven at all, see docs/scheduling.md."""

_SOLVABLE = 600
"""Units beyond which an exact solver finds nothing that the planner did not."""


def answer(message: Mapping[str, Any], *, plan_s: float = PLAN_S, solve_s: float = SOLVE_S) -> dict[str, Any]:
    """The answer to one question.

    Args:
        plan_s, solve_s: time limits of the planner and of the exact solver.
        message: ``ask`` (`plan`, `solve`, `judge`), ``problem``, ``sigma``, and the ``order`` to be judged.

    Returns:
        ``planned_s`` and ``dispatch_s`` simulated at that noise, ``lower_bound``; of a plan also its ``order``,
        ``source``, the ``seconds`` it took, and whether it ``is_optimal``: no better one can be found.
    """
    problem = from_json(message["problem"])
    sigma = float(message["sigma"])
    if message["ask"] == "judge":
        return _judged(problem, order_from_json(message["order"]), sigma)
    if message["ask"] == "plan":
        found = planner.plan(problem, time_limit_s=plan_s)
        is_optimal = found.schedule.makespan <= found.lower_bound * (1 + 1e-9)
        told = {"source": f"planner/{found.source}", "seconds": found.seconds}
        schedule = found.schedule
    else:
        hint = planner.plan(problem, time_limit_s=plan_s).schedule
        limit = solve_s if problem.num_units <= _SOLVABLE else 0.0
        solved = solve_exact(problem, time_limit_s=limit, hint=hint) if limit else None
        schedule = solved.schedule if solved and solved.schedule else hint
        is_optimal = True
        told = {
            "source": solved.solver if solved else "planner",
            "seconds": solved.seconds if solved else 0.0,
        }
    order = tuple(Entry(u.worker, u.model, u.epoch, u.partition) for u in schedule.units)
    return {**_judged(problem, order, sigma), **told, "order": order, "is_optimal": is_optimal}


def _judged(problem: Problem, order: Sequence[Entry], sigma: float) -> dict[str, Any]:
    compared = advice.compare(problem, Following(order), sigma=sigma)
    return {
        "planned_s": compared.planned_s,
        "dispatch_s": compared.dispatched_s,
        "lower_bound": lower_bound(problem),
    }
