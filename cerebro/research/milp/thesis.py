"""The thesis's mixed-integer programme: equations 4.1 to 4.14 (section 4.3), its hole repaired.

The names are the thesis's (table 4.1): tasks t are models, nodes n are workers; B strategy chosen, P runs on the GPU, O
runs on the node, I start on the GPU, A order of two tasks on a node, X order of two nodes for a task, G GPUs and R
runtime of a strategy, C the makespan, U a large value. Of the alternatives the linear ones are taken: 4.7 and 4.8, not
the bilinear 4.9; 4.10 and 4.11, not 4.12.

The hole: nothing in the printed form says that a task runs on a node at all. With O = 0 equations 4.3 to 4.6 hold for
whatever P, so no GPU is taken, 4.7, 4.8, 4.10 and 4.11 hold as well, and all tasks may run at once on one GPU. The
repair is what the text says: each model visits each node, so O = 1 (docs/decisions/0009-the-milp-repaired.md).
"""

# ruff: noqa: N806, SIM300 - names and directions are those of the equations

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations, product
from typing import TYPE_CHECKING, NamedTuple

from cerebro.scheduling.exact import gurobi
from cerebro.scheduling.exact.gurobi import Formulation
from cerebro.scheduling.exact.result import ExactResult, SolverUnavailableError
from cerebro.scheduling.exact.visits import Visit
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.schedule import Schedule

if TYPE_CHECKING:
    import gurobipy


def solve(problem: Problem, *, time_limit_s: float, hint: Schedule | None = None) -> ExactResult:
    """The best schedule that Gurobi finds with equations 4.1 to 4.14.

    Raises:
        SolverUnavailableError: no package, a model that is too large for the licence (the thesis's own three are, for
            the one that comes with the package); or not the thesis's problem.
    """
    holders = sorted(worker for held in problem.holders for worker in held)
    is_whole = all(mask == problem.all_partitions for mask in problem.left)
    is_new = is_whole and not any(problem.model_ready) and not any(problem.worker_ready)
    if holders != list(range(problem.num_workers)) or problem.epochs > 1 or not is_new:
        raise SolverUnavailableError(
            "the thesis's MILP (equations 4.1 to 4.14) knows one epoch and one partition on each node: use cp-sat or "
            "gurobi for this problem"
        )
    return gurobi.run("thesis", formulate, problem, time_limit_s=time_limit_s, hint=hint)


def formulate(model: gurobipy.Model, problem: Problem, wanted: Sequence[Visit]) -> Formulation:
    """The equations, with O = 1."""
    variables = printed(model, problem, wanted)
    for visited in variables.O.values():
        visited.LB = 1.0  # the repair
    return Formulation(
        start={v: [variables.I[v.model, _node(v), g] for g in range(problem.gpus[_node(v)])] for v in wanted},
        taken={v: [variables.B[v.model, _node(v), s] for s in range(len(v.options))] for v in wanted},
    )


class Variables(NamedTuple):
    """What the solver selects (table 4.1), by the thesis's indices, and the makespan C."""

    C: gurobipy.Var
    B: gurobipy.tupledict[tuple[int, int, int], gurobipy.Var]
    P: gurobipy.tupledict[tuple[int, int, int], gurobipy.Var]
    O: gurobipy.tupledict[tuple[int, int], gurobipy.Var]  # noqa: E741 - the thesis's name
    I: gurobipy.tupledict[tuple[int, int, int], gurobipy.Var]  # noqa: E741 - the thesis's name
    A: gurobipy.tupledict[tuple[int, int, int], gurobipy.Var]
    X: gurobipy.tupledict[tuple[int, int, int], gurobipy.Var]


class _Inputs(NamedTuple):
    """What is given (table 4.1): `strategies` are (number, G, R) by task and node."""

    tasks: range
    nodes: range
    gpus: Sequence[range]
    strategies: dict[tuple[int, int], list[tuple[int, int, float]]]
    U: float

    def of_gpus(self) -> Iterator[tuple[int, int, int]]:
        """(t, n, g) for every GPU of every node."""
        return ((t, n, g) for t, n in product(self.tasks, self.nodes) for g in self.gpus[n])


def printed(model: gurobipy.Model, problem: Problem, wanted: Sequence[Visit]) -> Variables:
    """The equations as the thesis prints them. They leave O free, so no schedule follows from their solution."""
    from gurobipy import GRB

    inputs = _Inputs(
        tasks=range(problem.num_models),
        nodes=range(problem.num_workers),
        gpus=[range(count) for count in problem.gpus],
        strategies={
            (v.model, _node(v)): [(s, option.gpus, option.seconds) for s, option in enumerate(v.options)]
            for v in wanted
        },
        U=gurobi.large(problem, wanted),
    )
    tasks, nodes = inputs.tasks, inputs.nodes
    on_gpus = list(inputs.of_gpus())
    chosen = [(t, n, s) for (t, n), ways in inputs.strategies.items() for s, _, _ in ways]
    variables = Variables(
        C=model.addVar(name="C", obj=1.0),
        B=model.addVars(chosen, vtype=GRB.BINARY, name="B"),
        P=model.addVars(on_gpus, vtype=GRB.BINARY, name="P"),
        O=model.addVars(tasks, nodes, vtype=GRB.BINARY, name="O"),
        I=model.addVars(on_gpus, lb=0.0, name="I"),  # 4.13
        A=model.addVars(
            [(n, t1, t2) for n in nodes for t1, t2 in permutations(tasks, 2)], vtype=GRB.BINARY, name="A"
        ),
        X=model.addVars(
            [(t, n1, n2) for t in tasks for n1, n2 in permutations(nodes, 2)], vtype=GRB.BINARY, name="X"
        ),
    )
    for t, n in product(tasks, nodes):
        _add_visit(model, inputs, variables, t, n)
    for n, pair in product(nodes, permutations(tasks, 2)):
        _add_tasks(model, inputs, variables, n, pair)
    for t, pair in product(tasks, permutations(nodes, 2)):
        _add_nodes(model, inputs, variables, t, pair)
    return variables


def _add_visit(model: gurobipy.Model, inputs: _Inputs, variables: Variables, t: int, n: int) -> None:
    """4.1 to 4.6: a task on a node."""
    C, B, P, O, I, _, _ = variables  # noqa: E741 - the thesis's names
    U = inputs.U
    model.addConstr(B.sum(t, n, "*") == 1)  # 4.2
    for s, G, R in inputs.strategies[t, n]:
        off = 2 - B[t, n, s] - O[t, n]
        model.addConstr(P.sum(t, n, "*") >= G - U * off)  # 4.3
        model.addConstr(P.sum(t, n, "*") <= G + U * off)  # 4.4
        for g in inputs.gpus[n]:
            model.addConstr(C >= I[t, n, g] + R - U * (1 - B[t, n, s]))  # 4.1
            off_gpu = 3 - P[t, n, g] - B[t, n, s] - O[t, n]
            model.addConstr(I.sum(t, n, "*") / G <= I[t, n, g] + U * off_gpu)  # 4.5
            model.addConstr(I.sum(t, n, "*") / G >= I[t, n, g] - U * off_gpu)  # 4.6


def _add_tasks(
    model: gurobipy.Model, inputs: _Inputs, variables: Variables, n: int, pair: tuple[int, int]
) -> None:
    """4.7 and 4.8: two tasks on one GPU, one after the other."""
    _, B, P, _, I, A, _ = variables  # noqa: E741 - the thesis's names
    U, (t1, t2) = inputs.U, pair
    for g in inputs.gpus[n]:
        apart = 2 - P[t1, n, g] - P[t2, n, g]
        for s, _, R in inputs.strategies[t1, n]:
            off = apart + 1 - B[t1, n, s] + A[n, t2, t1]
            model.addConstr(I[t1, n, g] <= I[t2, n, g] - R + U * off)  # 4.7
        for s, _, R in inputs.strategies[t2, n]:
            off = apart + 2 - B[t2, n, s] - A[n, t2, t1]
            model.addConstr(I[t1, n, g] >= I[t2, n, g] + R - U * off)  # 4.8


def _add_nodes(
    model: gurobipy.Model, inputs: _Inputs, variables: Variables, t: int, pair: tuple[int, int]
) -> None:
    """4.10, 4.11 and 4.14: one task on two nodes, one after the other."""
    _, B, P, _, I, _, X = variables  # noqa: E741 - the thesis's names
    U, (n1, n2) = inputs.U, pair
    model.addConstr(X[t, n1, n2] + X[t, n2, n1] == 1)  # 4.14
    for g1, g2 in product(inputs.gpus[n1], inputs.gpus[n2]):
        apart = 2 - P[t, n1, g1] - P[t, n2, g2]
        for s, _, R in inputs.strategies[t, n1]:
            off = apart + 1 - B[t, n1, s] + X[t, n2, n1]
            model.addConstr(I[t, n1, g1] <= I[t, n2, g2] - R + U * off)  # 4.10
        for s, _, R in inputs.strategies[t, n2]:
            off = apart + 2 - B[t, n2, s] - X[t, n2, n1]
            model.addConstr(I[t, n1, g1] >= I[t, n2, g2] + R - U * off)  # 4.11


def _node(visit: Visit) -> int:
    return visit.options[0].worker
