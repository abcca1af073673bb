"""Interface to Gurobi: solves a formulation, such as `compact`, and reads the schedule from its variables.

An optional extra. Raises `SolverUnavailableError` without the package or a licence, or if the formulation exceeds
the licence. The licence in the package allows 2,000 variables and 2,000 constraints.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cerebro.scheduling.bounds import lower_bound
from cerebro.scheduling.exact.required_sub_epochs import RequiredSubEpoch, placed, required_sub_epochs, timed
from cerebro.scheduling.exact.result import TOLERANCE, ExactResult, SolverUnavailableError
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.schedule import Placement, Schedule

if TYPE_CHECKING:
    import gurobipy


_MAX_PAIRS = 20_000
"""Ten times the size-limited licence; no larger MILP of this kind has been solved."""


@dataclass
class Formulation:
    """Variables of a formulation.

    Attributes:
        start: start variable of each sub-epoch.
        taken: for each sub-epoch, the choice variable of each option; 1 for a single option.
    """

    start: dict[RequiredSubEpoch, gurobipy.Var]
    taken: dict[RequiredSubEpoch, Sequence[gurobipy.Var | int]]


Formulate = Callable[["gurobipy.Model", Problem, Sequence[RequiredSubEpoch]], Formulation]
"""Adds a problem's sub-epochs to a new model."""


@contextmanager
def session() -> Iterator[gurobipy.Model]:
    """Open a new model: one thread, no output.

    Raises:
        SolverUnavailableError: no package, no licence, or the model exceeds the licence.
    """
    try:
        import gurobipy
    except ImportError as error:
        raise SolverUnavailableError(
            "Gurobi is not installed: pip install gurobipy, or use cp-sat"
        ) from error
    environment = gurobipy.Env(empty=True)
    environment.setParam("OutputFlag", 0)  # set before the start, which prints the licence
    try:
        environment.start()
    except gurobipy.GurobiError as error:
        environment.close()
        raise SolverUnavailableError(f"Gurobi has no licence here ({error}): use cp-sat") from error
    try:
        with environment, gurobipy.Model(env=environment) as model:
            model.Params.Threads = 1
            # The load bounds are nearly tight, so focus on finding schedules.
            model.Params.MIPFocus = 1
            # A binary that is off by 1e-5, times a large constant, would be tenths of a second.
            model.Params.IntFeasTol = 1e-9
            model.Params.FeasibilityTol = 1e-9
            yield model
    except gurobipy.GurobiError as error:
        if error.errno != gurobipy.GRB.Error.SIZE_LIMIT_EXCEEDED:
            raise
        raise SolverUnavailableError("the model is too large for this Gurobi licence: use cp-sat") from error


def run(
    name: str, formulate: Formulate, problem: Problem, *, time_limit_s: float, hint: Schedule | None
) -> ExactResult:
    """Solve a formulation of a problem.

    Args:
        hint: a feasible schedule to start from. The result is never worse.

    Raises:
        SolverUnavailableError: see `session`.
    """
    began = time.perf_counter()
    wanted = required_sub_epochs(problem)
    # The hint's order with the earliest starts.
    best = hint and timed(problem, placed(hint, wanted))
    bound = lower_bound(problem) if wanted else 0.0
    note = "nothing to do"
    if wanted:
        _check_size(wanted)
        with session() as model:
            formulation = formulate(model, problem, wanted)
            if best:
                _start_from(formulation, placed(best, wanted), best)
            model.Params.TimeLimit = time_limit_s
            model.Params.MIPGap = TOLERANCE / 10
            model.optimize()
            # Gurobi proves its bound to its own tolerances only.
            bound = max(bound, model.ObjBound * (1 - TOLERANCE / 2))
            if model.SolCount:
                found = timed(problem, _order(formulation))
                best = min(best or found, found, key=lambda schedule: schedule.makespan)
            note = _note(model, time_limit_s)
    elif best is None:
        best = Schedule(())
    return ExactResult(
        schedule=best,
        lower_bound=min(bound, best.makespan) if best else bound,
        is_optimal=best is not None and best.makespan - bound <= TOLERANCE * best.makespan,
        solver=name,
        seconds=time.perf_counter() - began,
        note=note,
    )


def _check_size(wanted: Sequence[RequiredSubEpoch]) -> None:
    """Refuse large problems.

    Every formulation orders each pair of a model's and of a worker's sub-epochs. With too many pairs,
    building the model alone takes minutes and gigabytes.
    """
    models = Counter(sub_epoch.model for sub_epoch in wanted)
    workers = Counter(
        worker for sub_epoch in wanted for worker in {option.worker for option in sub_epoch.options}
    )
    pairs = sum(count * (count - 1) // 2 for count in (*models.values(), *workers.values()))
    if pairs > _MAX_PAIRS:
        raise SolverUnavailableError(
            f"{len(wanted)} sub-epochs are too many for a MILP, which would have {pairs:,} pairs of them to order: use "
            "cp-sat"
        )


def large(problem: Problem, wanted: Sequence[RequiredSubEpoch]) -> float:
    """Return a time that no optimal schedule exceeds (U of the thesis).

    All models and GPUs are ready, then all sub-epochs run in sequence, each by its slowest option.
    """
    longest = sum(max(option.seconds for option in sub_epoch.options) for sub_epoch in wanted)
    return max(*problem.model_ready, *(gpus[-1] for gpus in problem.gpu_ready), 0.0) + longest


def _order(formulation: Formulation) -> list[Placement]:
    found = []
    for sub_epoch in sorted(formulation.start, key=lambda sub_epoch: formulation.start[sub_epoch].X):
        values = [
            taken if isinstance(taken, int) else round(taken.X) for taken in formulation.taken[sub_epoch]
        ]
        found.append(sub_epoch.options[values.index(1)])
    return found


def _start_from(formulation: Formulation, order: list[Placement], schedule: Schedule) -> None:
    by_name = {completed[:3]: completed for completed in formulation.start}  # (model, partition, epoch)
    for known, sub_epoch in zip(order, schedule.sub_epochs, strict=True):
        completed = by_name[known.model, known.partition, known.epoch]
        formulation.start[completed].Start = sub_epoch.start
        for other, taken in zip(completed.options, formulation.taken[completed], strict=True):
            if not isinstance(taken, int):
                taken.Start = float(other == known)


def _note(model: gurobipy.Model, time_limit_s: float) -> str:
    from gurobipy import GRB

    if model.Status == GRB.OPTIMAL:
        return "searched to the end"
    if model.SolCount:
        return f"stopped after {time_limit_s:g} s with the best schedule found"
    return f"found nothing in {time_limit_s:g} s"
