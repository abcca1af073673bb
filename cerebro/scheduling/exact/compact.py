"""A mixed-integer programme small enough for the licence of Gurobi's package.

The thesis's equations use a start for every GPU and a constraint for every pair of GPUs and every plan.
Here a sub-epoch has one start, one duration and one order relative to another, on any GPUs. With load bounds,
which the printed form lacks and without which the relaxation proves almost nothing, the thesis's three
instances have 649 x 1094, 217 x 354 and 481 x 928 variables and constraints. It accepts the same problems as
CP-SAT.

Names and numbers of equations are the thesis's (section 4.3): S start, B option chosen, P runs on the GPU, A
one sub-epoch ends before the other starts, C the makespan, U a large value.
"""

# ruff: noqa: N806, SIM300 - names and directions as in the equations

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from cerebro.scheduling.bounds import lower_bound
from cerebro.scheduling.exact import gurobi
from cerebro.scheduling.exact.gurobi import Formulation
from cerebro.scheduling.exact.required_sub_epochs import RequiredSubEpoch
from cerebro.scheduling.exact.result import ExactResult
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.schedule import Schedule

if TYPE_CHECKING:
    import gurobipy

    Linear = gurobipy.LinExpr | gurobipy.Var | float


def solve(problem: Problem, *, time_limit_s: float, hint: Schedule | None = None) -> ExactResult:
    """Search for the best schedule with Gurobi and the compact form.

    Raises:
        SolverUnavailableError: no package, no licence, or the model exceeds it.
    """
    return gurobi.run("gurobi", formulate, problem, time_limit_s=time_limit_s, hint=hint)


def formulate(model: gurobipy.Model, problem: Problem, wanted: Sequence[RequiredSubEpoch]) -> Formulation:
    """Add the compact form to a model."""
    compact = _Compact(model, problem, wanted)
    for sub_epoch in wanted:
        compact.add_sub_epoch(sub_epoch)
    for m in range(problem.num_models):
        compact.add_model(m)
    for worker in range(problem.num_workers):
        compact.add_worker(worker)
    return Formulation(start=compact.S, taken=compact.B)


class _Compact:
    def __init__(self, model: gurobipy.Model, problem: Problem, wanted: Sequence[RequiredSubEpoch]) -> None:
        self.model, self.problem, self.wanted = model, problem, wanted
        self.U = gurobi.large(problem, wanted)
        self.bound = lower_bound(problem)
        self.C = model.addVar(lb=self.bound, name="C", obj=1.0)
        self.S: dict[RequiredSubEpoch, gurobipy.Var] = {}
        self.B: dict[RequiredSubEpoch, Sequence[gurobipy.Var | int]] = {}
        self.seconds: dict[RequiredSubEpoch, Linear] = {}

    def add_sub_epoch(self, sub_epoch: RequiredSubEpoch) -> None:
        """Take one option, after model and worker are ready (4.1 and 4.2).

        C is at least its end.
        """
        from gurobipy import quicksum

        model, problem, options = self.model, self.problem, sub_epoch.options
        S = self.S[sub_epoch] = model.addVar(lb=problem.model_ready[sub_epoch.model], name="S")
        if len(options) == 1:
            self.B[sub_epoch], self.seconds[sub_epoch] = [1], options[0].seconds
        else:
            B = [model.addVar(vtype="B", name="B") for _ in options]
            model.addConstr(quicksum(B) == 1)
            self.B[sub_epoch], self.seconds[sub_epoch] = (
                [*B],
                sum(o.seconds * b for o, b in zip(options, B, strict=True)),
            )
        ready = [problem.ready(option.worker, option.gpus) for option in options]
        if any(ready):
            model.addConstr(S >= sum(at * b for at, b in zip(ready, self.B[sub_epoch], strict=True)))
        model.addConstr(self.C >= S + self.seconds[sub_epoch])

    def is_on(self, sub_epoch: RequiredSubEpoch, worker: int) -> Linear:
        from gurobipy import quicksum

        if all(option.worker == worker for option in sub_epoch.options):
            return 1
        return quicksum(
            b for o, b in zip(sub_epoch.options, self.B[sub_epoch], strict=True) if o.worker == worker
        )

    def follows(self, one: RequiredSubEpoch, other: RequiredSubEpoch, unless: Linear) -> None:
        """Make `other` start after `one` has ended, unless `unless` is 1 or more."""
        self.model.addConstr(self.S[other] >= self.S[one] + self.seconds[one] - self.U * unless)

    def add_model(self, m: int) -> None:
        """Keep a model in one place at a time (4.10, 4.11, 4.14), epochs in sequence.

        C is at least the model's load.
        """
        mine = [sub_epoch for sub_epoch in self.wanted if sub_epoch.model == m]
        for one, other in combinations(mine, 2):
            if one.epoch < other.epoch:
                self.follows(one, other, 0)
            else:
                X = self.model.addVar(vtype="B", name="X")
                self.follows(one, other, 1 - X)
                self.follows(other, one, X)
        if mine:
            self.model.addConstr(self.C >= self.problem.model_ready[m] + sum(self.seconds[v] for v in mine))

    def add_worker(self, worker: int) -> None:
        """Keep sub-epochs that share a GPU apart (4.3 to 4.8).

        C is at least the worker's load.
        """
        gpus = self.problem.gpus[worker]
        mine = {v: [o for o in v.options if o.worker == worker] for v in self.wanted}
        mine = {sub_epoch: options for sub_epoch, options in mine.items() if options}
        if not mine:
            return
        if 2 * min(option.gpus for options in mine.values() for option in options) > gpus:
            self.add_exclusive(worker, list(mine))
        else:
            self.add_shared(worker, list(mine))
        load = sum(
            option.gpus * option.seconds * b
            for sub_epoch in mine
            for option, b in zip(sub_epoch.options, self.B[sub_epoch], strict=True)
            if option.worker == worker
        )
        # If other holders may do all its work, C need not wait for this worker.
        is_needed = any(all(option.worker == worker for option in sub_epoch.options) for sub_epoch in mine)
        first, *later = self.problem.gpu_ready[worker] if is_needed else [0.0] * gpus
        # C need not wait for a GPU that is ready later than C.
        absent = first + sum(min(ready, max(first, self.bound)) for ready in later)
        self.model.addConstr(gpus * self.C >= absent + load)

    def add_exclusive(self, worker: int, mine: list[RequiredSubEpoch]) -> None:
        """Order each pair on a worker that can't train two sub-epochs side by side."""
        for one, other in combinations(mine, 2):
            if one.model != other.model:
                elsewhere = 2 - self.is_on(one, worker) - self.is_on(other, worker)
                A = self.model.addVar(vtype="B", name="A")
                self.follows(one, other, 1 - A + elsewhere)
                self.follows(other, one, A + elsewhere)

    def add_shared(self, worker: int, mine: list[RequiredSubEpoch]) -> None:
        """Order the pairs that share a GPU, on a worker with room for several."""
        from gurobipy import quicksum

        P: dict[RequiredSubEpoch, list[gurobipy.Var]] = defaultdict(list)
        for sub_epoch in mine:
            P[sub_epoch] = [self.model.addVar(vtype="B", name="P") for _ in range(self.problem.gpus[worker])]
            needed = sum(
                option.gpus * b
                for option, b in zip(sub_epoch.options, self.B[sub_epoch], strict=True)
                if option.worker == worker
            )
            self.model.addConstr(quicksum(P[sub_epoch]) == needed)
            for is_taken, ready in zip(P[sub_epoch], self.problem.gpu_ready[worker], strict=True):
                if ready:
                    self.model.addConstr(self.S[sub_epoch] >= ready * is_taken)
        for one, other in combinations(mine, 2):
            if one.model != other.model:
                A = [self.model.addVar(vtype="B", name="A") for _ in range(2)]
                self.follows(one, other, 1 - A[0])
                self.follows(other, one, 1 - A[1])
                self.model.addConstr(A[0] + A[1] <= 1)
                for p, q in zip(P[one], P[other], strict=True):
                    self.model.addConstr(A[0] + A[1] >= p + q - 1)
