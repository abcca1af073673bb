"""The Model Hopper paper's mixed-integer programme: equation 2, for its own problem only.

The names are the paper's (table 3): X start times, T unit times, Y the order of a model's units, Z the order of a
worker's, C the makespan, V a large value. Two misprints are read as they must be meant: in (a), and where table 3
defines Y, the model's index is primed, which would order units of different models on different workers.
"""

# ruff: noqa: N806, SIM300 - names and directions are those of the equations

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations, product
from typing import TYPE_CHECKING

from cerebro.scheduling.exact import gurobi
from cerebro.scheduling.exact.gurobi import Formulation
from cerebro.scheduling.exact.result import ExactResult, SolverUnavailableError
from cerebro.scheduling.exact.visits import Visit
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.schedule import Schedule

if TYPE_CHECKING:
    import gurobipy


def solve(problem: Problem, *, time_limit_s: float, hint: Schedule | None = None) -> ExactResult:
    """The best schedule of an open shop that Gurobi finds with equation 2.

    Raises:
        SolverUnavailableError: no package or licence; or the problem is no plain open shop.
    """
    if not problem.is_open_shop:
        raise SolverUnavailableError(
            "the paper's MILP (equation 2) knows one epoch, one GPU per worker and one holder per partition: "
            "use cp-sat or gurobi for this problem"
        )
    return gurobi.run("hopping", formulate, problem, time_limit_s=time_limit_s, hint=hint)


def formulate(model: gurobipy.Model, problem: Problem, wanted: Sequence[Visit]) -> Formulation:
    """Equation 2 (a) to (f)."""
    from gurobipy import GRB

    configs, workers = range(problem.num_models), range(problem.num_workers)
    T = {(v.model, v.options[0].worker): v.options[0].seconds for v in wanted}
    V = sum(T.values())  # table 3: the default is the sum of the unit times
    C = model.addVar(name="C", obj=1.0)
    X = model.addVars(configs, workers, lb=0.0, name="X")  # (e)
    Y = model.addVars(configs, workers, workers, vtype=GRB.BINARY, name="Y")
    Z = model.addVars(configs, configs, workers, vtype=GRB.BINARY, name="Z")
    for i, (j, k) in product(configs, permutations(workers, 2)):
        model.addConstr(X[i, j] >= X[i, k] + T[i, k] - V * Y[i, j, k])  # (a)
        model.addConstr(X[i, k] >= X[i, j] + T[i, j] - V * (1 - Y[i, j, k]))  # (b)
    for (i, k), j in product(permutations(configs, 2), workers):
        model.addConstr(X[i, j] >= X[k, j] + T[k, j] - V * Z[i, k, j])  # (c)
        model.addConstr(X[k, j] >= X[i, j] + T[i, j] - V * (1 - Z[i, k, j]))  # (d)
    for i, j in product(configs, workers):
        model.addConstr(C >= X[i, j] + T[i, j])  # (f)
    return Formulation(
        start={v: [X[v.model, v.options[0].worker]] for v in wanted}, taken={v: [1] for v in wanted}
    )
