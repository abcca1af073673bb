"""Exact solvers: what each search found, and what is proven of it.

CP-SAT is the default, free and the best of them (docs/decisions/0009-the-milp-repaired.md). Without it Gurobi solves
a compact mixed-integer programme, small enough for the licence that comes with the package.

Both keep the best schedule found when the time is up. None is needed: without solvers `solve_exact` gives back its hint
and says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from cerebro.errors import InstanceError
from cerebro.scheduling.bounds import lower_bound
from cerebro.scheduling.exact import compact, search
from cerebro.scheduling.exact.result import TOLERANCE, ExactResult, SolverUnavailableError
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.schedule import Schedule

__all__ = ["SOLVERS", "TOLERANCE", "ExactResult", "SolverUnavailableError", "solve_exact"]

SOLVERS: dict[str, Callable[..., ExactResult]] = {
    "cp-sat": search.solve,
    "gurobi": compact.solve,
}
"""By name; "gurobi" is the compact form."""

_IN_TURN = ("cp-sat", "gurobi")


def solve_exact(
    problem: Problem, *, time_limit_s: float, hint: Schedule | None = None, solver: str = "auto"
) -> ExactResult:
    """The best schedule a solver finds in the time, on one core.

    Args:
        problem: any without gangs.
        time_limit_s: for the search; writing the model down comes on top.
        hint: a valid schedule of the problem, the best one known. The result is never worse.
        solver: one of `SOLVERS`; "auto" takes CP-SAT, without it Gurobi, without that the hint, and its note says so.

    Raises:
        SolverUnavailableError: the solver asked for by name is not installed, or has no licence for a model of this
            size. Never raised for "auto".
        ValueError: there is no such solver.
        InstanceError: there are gangs, which no solver chooses: what it proved would be of schedules without them.
    """
    if any(problem.gangs):
        raise InstanceError("exact solvers choose no gangs: leave them out")
    if solver != "auto":
        if solver not in SOLVERS:
            raise ValueError(f"there is no solver {solver!r}: choose auto, {', '.join(SOLVERS)}")
        return SOLVERS[solver](problem, time_limit_s=time_limit_s, hint=hint)
    began = time.perf_counter()
    missing: list[str] = []
    for name in _IN_TURN:
        try:
            result = SOLVERS[name](problem, time_limit_s=time_limit_s, hint=hint)
        except SolverUnavailableError as error:
            missing.append(str(error))
        else:
            return replace(result, note="; ".join([*missing, result.note]))
    return _only(problem, hint, seconds=time.perf_counter() - began, note="; ".join(missing))


def _only(problem: Problem, hint: Schedule | None, *, seconds: float, note: str) -> ExactResult:
    """The hint, as it is."""
    bound = lower_bound(problem)
    return ExactResult(
        schedule=hint,
        lower_bound=bound if hint is None else min(bound, hint.makespan),
        is_optimal=hint is not None and hint.makespan <= bound * (1 + 1e-9),
        solver="none",
        seconds=seconds,
        note=note,
    )
