"""Answers of the planner's child process: plans, exact solutions, comparisons and forecasts. Pure.

`controller.planning.child` calls `answer` once per request of `controller.planning.planner_process` or of the
autoscaler; the research simulation calls it in its own process. It reads no log: the request has all data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cerebro.scheduling.bounds import lower_bound
from cerebro.scheduling.dispatch import dispatch
from cerebro.scheduling.exact import solve_exact
from cerebro.scheduling.planning import advice, planner
from cerebro.scheduling.planning.plan_table import PlanTable, of_schedule
from cerebro.scheduling.policies import DEFAULT_POLICY, POLICIES
from cerebro.scheduling.policies.following import Following
from cerebro.scheduling.policies.policy import Policy
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.schedule import Placement, Schedule
from controller.planning.planner_query import from_json, order_from_json
from controller.scaling.autoscaler import forecast

PLAN_S = 2.0
"""Time limit of the planner in seconds."""
SOLVE_S = 30.0
"""Time limit of the exact solver in seconds; longer runs prove little more (docs/scheduling.md)."""

_SOLVE_SHARE = 0.25
"""The exact solver's time limit as a share of the remaining time: a late result is useless."""

_SOLVABLE = 600
"""Maximum sub-epochs for the exact solver, which finds nothing better than the planner beyond."""


def answer(message: Mapping[str, Any], *, plan_s: float = PLAN_S, solve_s: float = SOLVE_S) -> dict[str, Any]:
    """Return the answer to one request.

    Args:
        plan_s, solve_s: time limits of the planner and of the exact solver.
        message: for the autoscaler, see `controller.scaling.autoscaler.forecast`. Else ``request`` (`plan`,
            `solve`, `judge`), ``problem``, ``sigma``, the ``present`` parallel plans, the ``followed`` order,
            if any, and ``order`` and ``parallel_plans`` to judge.

    Returns:
        Simulated ``planned_s``, ``dispatch_s`` and ``followed_s`` (`None` without a followed order), and
            ``lower_bound``. For a plan also ``order`` (empty: only its parallel plans are better),
            ``parallel_plans``, ``source``, ``seconds`` of computation, and ``is_last``: True if nothing
            better can be found this way.
    """
    if message["request"] == "forecast":
        return forecast.answer(message)
    problem = from_json(message["problem"])
    followed = order_from_json(message["followed"]) if "followed" in message else None
    sigma, present = float(message["sigma"]), message["present"]
    if message["request"] == "judge":
        proposal = _Proposal(order_from_json(message["order"]), message["parallel_plans"])
        return _compared(problem, {"planned_s": proposal}, present, followed, sigma)
    if message["request"] == "plan":
        found = planner.plan(problem, time_limit_s=plan_s)
        schedule, is_last = found.schedule, not found.gap or problem.num_sub_epochs > _SOLVABLE
        details = {"source": f"planner/{found.source}", "seconds": found.seconds, "is_last": is_last}
    else:
        schedule, details = _solved(problem, present, followed, solve_s)
    order = schedule.sub_epochs
    parallel_plans = _plan_table(problem, schedule, present)
    proposals = {"planned_s": _Proposal(order, parallel_plans)}
    if parallel_plans != present:
        # Better parallel plans, without a fixed order.
        proposals["by_parallel_plans_s"] = _Proposal((), parallel_plans)
    means = _compared(problem, proposals, present, followed, sigma)
    by_parallel_plans_s = means.pop("by_parallel_plans_s", None)
    if by_parallel_plans_s is not None and by_parallel_plans_s <= means["planned_s"]:
        means["planned_s"], order = by_parallel_plans_s, ()
    return {**means, **details, "order": order, "parallel_plans": parallel_plans}


class _Proposal(NamedTuple):
    """Parallel plans and an order of sub-epochs to simulate; without an order, dispatch chooses."""

    order: Sequence[Placement]
    parallel_plans: PlanTable


def _plan_table(problem: Problem, schedule: Schedule, present: PlanTable) -> list[list[int]]:
    """Return the parallel plans of a schedule; the present one for an absent pair."""
    table, used = (
        of_schedule(problem, schedule),
        {(sub_epoch.model, sub_epoch.worker) for sub_epoch in schedule.sub_epochs},
    )
    return [
        [s if (m, w) in used else now for w, (s, now) in enumerate(zip(row, present_row, strict=True))]
        for m, (row, present_row) in enumerate(zip(table, present, strict=True))
    ]


def _solved(
    problem: Problem, table: PlanTable, followed: Sequence[Placement] | None, limit_s: float
) -> tuple[Schedule, dict[str, Any]]:
    """Improve the present schedule with an exact solver."""
    policy = Following(followed) if followed else POLICIES[DEFAULT_POLICY]
    present = dispatch(problem.with_parallel_plans(table), policy)
    limit_s = min(limit_s, _SOLVE_SHARE * present.makespan)
    solved = solve_exact(problem, time_limit_s=limit_s, hint=present)
    details = {"source": solved.solver, "seconds": solved.seconds, "is_last": True}
    return solved.schedule or present, details


def _compared(
    problem: Problem,
    proposals: Mapping[str, _Proposal],
    present: PlanTable,
    followed: Sequence[Placement] | None,
    sigma: float,
) -> dict[str, Any]:
    """Simulate each proposal, the present schedule, and dispatch with the present parallel plans."""
    found: dict[str, Any] = {"followed_s": None, "lower_bound": lower_bound(problem)}
    choices = {**proposals, "dispatch_s": _Proposal((), present)}
    if followed:
        choices["followed_s"] = _Proposal(followed, present)
    for name, (order, parallel_plans) in choices.items():
        policy: Policy = Following(order) if order else POLICIES[DEFAULT_POLICY]
        means, _ = advice.mean_makespans(
            problem.with_parallel_plans(parallel_plans), {name: policy}, sigma=sigma
        )
        found.update(means)
    return found
