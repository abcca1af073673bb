"""Exact solvers: the best schedule found, and a proven bound.

CP-SAT is the default, free and the best (docs/decisions/0009-the-milp-repaired.md). Without it, Gurobi solves
a compact mixed-integer programme that fits the package's own licence.

Both keep the best schedule at the time limit. Solvers are optional: without any, `solve_exact` returns its
hint with a note.
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
"""Solvers by name; "gurobi" is the compact form."""

_IN_TURN = ("cp-sat", "gurobi")


def solve_exact(
    problem: Problem, *, time_limit_s: float, hint: Schedule | None = None, solver: str = "auto"
) -> ExactResult:
    """Search for an optimal schedule within the time limit, on one core.

    Args:
        problem: any problem without gangs.
        time_limit_s: time limit of the search, without building the model.
        hint: the best known valid schedule. The result is never worse.
        solver: a name in `SOLVERS`; "auto" tries CP-SAT, then Gurobi, then returns the hint with a note.

    Raises:
        SolverUnavailableError: the named solver is not installed, or has no licence for this size. Never for
            "auto".
        ValueError: the solver's name is unknown.
        InstanceError: the problem has gangs, which solvers do not support; their proof would ignore them.
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
    """Return the hint as the result."""
    bound = lower_bound(problem)
    return ExactResult(
        schedule=hint,
        lower_bound=bound if hint is None else min(bound, hint.makespan),
        is_optimal=hint is not None and hint.makespan <= bound * (1 + 1e-9),
        solver="none",
        seconds=seconds,
        note=note,
    )
