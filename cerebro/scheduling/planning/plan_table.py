"""Plan tables: the parallel plan of each model on each worker, chosen before the order. For the planner's searches.

The thesis decides parallel plans together with the order (variable B in section 4.3, equations 4.2-4.4) and
compares two fixed choices, all GPUs of a node and one GPU each (sections 4.2 and 4.2.1). Here they form a table
that a search may change entry by entry. An entry may also exclude a model from a worker, if other allowed
workers have replicas of all the worker's partitions; the model then trains on those replicas.

Must not depend on `decoder`, which computes schedules from tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from cerebro.scheduling.problem import Problem, TimedPlan, shared_s
from cerebro.scheduling.schedule import Schedule

NOT_HERE = -1
"""Entry of a plan table: the model does not run on the worker."""

PlanTable = Sequence[Sequence[int]]
"""``plan_table[m][w]``: index of a parallel plan of model `m` on worker `w`, or `NOT_HERE`."""


def plan_tables(problem: Problem) -> dict[str, PlanTable]:
    """Return initial tables by name, without duplicates.

    "full node": the fastest plans. "one GPU each": the plans with fewest GPUs. "least GPU time": the plans with
    the smallest product of GPUs and seconds. "mixed": these, with more GPUs for the longest models. "fill":
    fewest GPUs, then more while the cluster has free ones.
    """
    size = problem.mean_size
    found = {
        "full node": _by(
            problem, lambda parallel_plan: (parallel_plan.sub_epoch_s(size), parallel_plan.gpus)
        ),
        "one GPU each": _by(
            problem, lambda parallel_plan: (parallel_plan.gpus, parallel_plan.sub_epoch_s(size))
        ),
        "least GPU time": _least_gpu_time(problem),
    }
    found["mixed"] = _widened(problem, found["least GPU time"])
    found["fill"] = _filled(problem)
    return {name: table for name, table in found.items() if table not in _earlier_choices(found, name)}


def of_schedule(problem: Problem, schedule: Schedule) -> PlanTable:
    """Return the parallel plans of a schedule.

    A model's entry on other workers is its parallel plan with least GPU time.
    """
    table = _least_gpu_time(problem)
    for sub_epoch in reversed(schedule.sub_epochs):
        for s, parallel_plan in enumerate(problem.parallel_plans[sub_epoch.model][sub_epoch.worker]):
            if (parallel_plan.gpus, parallel_plan.technique) == (sub_epoch.gpus, sub_epoch.technique):
                table[sub_epoch.model][sub_epoch.worker] = s
    return table


def allowed(problem: Problem, row: Sequence[int], partition: int) -> list[int]:
    """Return the workers with the partition where the model's row allows it."""
    return [w for w in problem.holders[partition] if row[w] != NOT_HERE]


def alternatives(problem: Problem, plan_table: PlanTable, model: int, worker: int) -> list[int]:
    """Return the other possible values of an entry."""
    row = list(plan_table[model])
    here, row[worker] = row[worker], NOT_HERE
    found = [s for s in range(len(problem.parallel_plans[model][worker])) if s != here]
    held = [p for p, holders in enumerate(problem.holders) if worker in holders]
    if here != NOT_HERE and held and all(allowed(problem, row, p) for p in held):
        found.append(NOT_HERE)
    return found


def widths(problem: Problem, model: int) -> list[int]:
    """Return the numbers of GPUs of the model's parallel plans, ascending."""
    return sorted(
        {
            parallel_plan.gpus
            for parallel_plans in problem.parallel_plans[model]
            for parallel_plan in parallel_plans
        }
    )


def of_width(problem: Problem, model: int, gpus: int) -> list[int]:
    """Return the row with the fastest parallel plans of at most `gpus` GPUs.

    On a worker without such a parallel plan, the narrowest one.
    """
    size, row = problem.mean_size, []
    for parallel_plans in problem.parallel_plans[model]:
        fitting = [s for s, parallel_plan in enumerate(parallel_plans) if parallel_plan.gpus <= gpus]
        if fitting:
            row.append(min(fitting, key=lambda s: parallel_plans[s].sub_epoch_s(size)))
        else:
            row.append(
                min(range(len(parallel_plans)), key=lambda s: parallel_plans[s].gpus, default=NOT_HERE)
            )
    return row


def only_at(problem: Problem, row: Sequence[int], worker: int) -> list[int]:
    """Return the row with the model excluded from other workers, in order of their numbers.

    A worker stays allowed if it alone, of the allowed workers, holds a partition.
    """
    restricted_row = list(row)
    for w in range(problem.num_workers):
        entry, restricted_row[w] = restricted_row[w], NOT_HERE
        if w == worker or not all(
            allowed(problem, restricted_row, p) for p, held in enumerate(problem.holders) if w in held
        ):
            restricted_row[w] = entry
    return restricted_row


def has_choice(problem: Problem) -> bool:
    """Return whether some entry may have an alternative.

    Either a parallel plan, or a worker with replicas of all its partitions elsewhere.
    """
    if not problem.is_single:
        return True
    alone = {holders[0] for holders in problem.holders if len(holders) == 1}
    return len({w for holders in problem.holders for w in holders} - alone) > 0


def at_least(problem: Problem, table: PlanTable) -> float:
    """Estimate the seconds of the best epoch with this table.

    The larger of the longest model and the fullest worker. Assumes that holders of a partition share its
    sub-epochs so that each holder spends equally long; without replicas it is a lower bound.
    """
    rows, loads = _sums(problem, table)
    return max(*rows, *loads)


def _least_gpu_time(problem: Problem) -> list[list[int]]:
    size = problem.mean_size
    return _by(
        problem,
        lambda parallel_plan: (
            parallel_plan.sub_epoch_s(size) * parallel_plan.gpus,
            parallel_plan.sub_epoch_s(size),
        ),
    )


def _by(problem: Problem, rule: Callable[[TimedPlan], tuple[float, ...]]) -> list[list[int]]:
    return [
        [
            min(range(len(parallel_plans)), key=lambda s: rule(parallel_plans[s]))
            if parallel_plans
            else NOT_HERE
            for parallel_plans in row
        ]
        for row in problem.parallel_plans
    ]


def _earlier_choices(found: dict[str, list[list[int]]], name: str) -> list[list[list[int]]]:
    names = list(found)
    return [found[earlier] for earlier in names[: names.index(name)]]


def _widened(problem: Problem, narrow: list[list[int]]) -> list[list[int]]:
    """Give the longest model more GPUs while the bound falls.

    Each step takes the parallel plan with the least cost per second saved. The bound is the open shop's: the
    longest model or the fullest worker. Few models need wide parallel plans, many need efficient ones, and in
    between only the longest need width.
    """
    best = table = [list(row) for row in narrow]
    bound = math.inf
    while True:
        rows, loads = _sums(problem, table)
        now = max(*rows, *loads)
        if now > bound:
            return best
        if now < bound:  # if several models are longest, the bound falls only after all are widened
            best, bound = [list(row) for row in table], now
        model = max(range(problem.num_models), key=rows.__getitem__)
        step = min(_widenings(problem, table, model), default=None)
        if step is None:
            return best
        _, worker, plan_index = step
        table[model][worker] = plan_index


def _sums(problem: Problem, table: PlanTable) -> tuple[list[float], list[float]]:
    rows, loads = [0.0] * problem.num_models, [0.0] * problem.num_workers
    for m, row in enumerate(table):
        for p, size in enumerate(problem.sizes):
            places = allowed(problem, row, p)
            parallel_plans = [problem.parallel_plans[m][w][row[w]] for w in places]
            rows[m] += min(parallel_plan.sub_epoch_s(size) for parallel_plan in parallel_plans)
            each = shared_s(parallel_plan.sub_epoch_s(size) for parallel_plan in parallel_plans)
            for w, parallel_plan in zip(places, parallel_plans, strict=True):
                loads[w] += each * parallel_plan.gpus / problem.gpus[w]
    return rows, loads


def _filled(problem: Problem) -> list[list[int]]:
    """Start all models with their fewest GPUs, then add GPUs where each saves most.

    The greedy rule of Optimus (Peng et al., 2018, section 4.1): it depends on the gain of a model, not on its
    length.
    """
    rows = [of_width(problem, m, 0) for m in range(problem.num_models)]
    free_gpus = sum(problem.gpus) - sum(_width(problem, m, row) for m, row in enumerate(rows))
    while True:
        steps = [step for m, row in enumerate(rows) for step in _steps(problem, m, row, free_gpus)]
        best = max(steps, key=lambda step: step[0], default=None)
        if best is None:
            return rows
        _, paid, model, row = best
        rows[model], free_gpus = row, free_gpus - paid


def _steps(
    problem: Problem, model: int, row: list[int], most: int
) -> Iterator[tuple[float, int, int, list[int]]]:
    """Yield (seconds saved by each GPU, GPUs, model, row) of the wider rows."""
    width, seconds = _width(problem, model, row), _chain(problem, model, row)
    for gpus in widths(problem, model):
        if width < gpus <= width + most:
            wider = of_width(problem, model, gpus)
            saved = seconds - _chain(problem, model, wider)
            if saved > 0:
                yield saved / (gpus - width), gpus - width, model, wider


def _width(problem: Problem, model: int, row: Sequence[int]) -> int:
    return max(problem.parallel_plans[model][w][s].gpus for w, s in enumerate(row) if s != NOT_HERE)


def _chain(problem: Problem, model: int, row: Sequence[int]) -> float:
    """Return the sum of a model's sub-epochs on all partitions, each on its fastest allowed worker."""
    return sum(
        min(problem.seconds(model, p, w, row[w]) for w in allowed(problem, row, p))
        for p in range(problem.num_partitions)
    )


def _widenings(problem: Problem, table: PlanTable, model: int) -> list[tuple[float, int, int]]:
    """Return (GPU seconds paid for each second saved, worker, parallel plan) of the model's faster parallel plans."""
    found = []
    for w, s in enumerate(table[model]):
        if s == NOT_HERE:
            continue
        parallel_plans = problem.parallel_plans[model][w]
        seconds = [parallel_plan.sub_epoch_s(problem.mean_size) for parallel_plan in parallel_plans]
        for other, parallel_plan in enumerate(parallel_plans):
            if seconds[other] < seconds[s]:
                paid = seconds[other] * parallel_plan.gpus - seconds[s] * parallel_plans[s].gpus
                found.append((paid / problem.gpus[w] / (seconds[s] - seconds[other]), w, other))
    return found
