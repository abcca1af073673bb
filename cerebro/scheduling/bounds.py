"""Lower bounds on the makespan, for the planner, exact solvers and the validator. A schedule that meets one is optimal.

For the open shop LB = max(largest row sum, largest column sum) of the sub-epoch times (seed paper, section
5.1): a model's sub-epochs run one after the other, and so do a worker's. `lower_bound` generalizes both to
every `Problem`. A row is a chain of sub-epochs at their fastest, epoch after epoch. A column is the remaining
work of a *set* of workers, because any holder of a partition may run the sub-epoch. If a sub-epoch has
several parallel plans, fast ones shorten rows and lengthen columns; a weighted sum of rows and columns bounds
this trade-off.

Uses problems only: no dispatch state, policy or schedule. Each bound is valid alone; the largest is returned.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cerebro.scheduling.problem import Problem, filled_s

_MAX_SETS = 300
"""Limit of holder sets in the column bound.

Above it, only the whole cluster and single workers are tested.
"""
_MAX_THRESHOLDS = 16
_EVALUATIONS = 200_000
"""Limit of parallel plans evaluated by the weighted bound: some 80 ms."""
_MOMENTUM = 0.8
_MAX_STALLED_STEPS = 3
"""Rounds without improvement before the weighted bound returns to its best weights with smaller steps."""
_LEAST_STEP = 0.02
_CLOSE = 1e-4
"""Relative distance to the relaxation's optimum at which the weighted bound stops."""
_ROUNDING = 1e-12
"""Upper limit of the relative rounding error.

Without it a bound could exceed an optimum it meets.
"""


class _Option(NamedTuple):
    """Runs a sub-epoch on `share` of the GPUs of `worker` for `seconds`."""

    worker: int
    share: float
    seconds: float


class _Kind(NamedTuple):
    """Sub-epochs of a model with the same parallel plans.

    Times are for size 1 and `amount` is the sum of sizes. With a fixed part, times are for one sub-epoch and
    `amount` is the number of sub-epochs.
    """

    model: int
    amount: float
    parallel_plans: tuple[_Option, ...]


def lower_bound(problem: Problem) -> float:
    """Return the minimum number of seconds of any schedule of the problem.

    For an open shop it is max(largest row sum, largest column sum). Relative error about 1e-12 from summing
    floats. Takes up to 50 ms with a choice of workers or parallel plans, otherwise a few.
    """
    if any(problem.gangs):
        return _with_gangs(problem)
    best = max((_chain(problem, model) for model in range(problem.num_models)), default=0.0)
    kinds = _kinds(problem)
    # While some GPUs are not ready, a wide sub-epoch may still find enough free ones. Only the plain shares
    # can account for ready times of single GPUs.
    first_ready = [(gpus[0],) * len(gpus) for gpus in problem.gpu_ready]
    for number, measured in enumerate(_shares(problem, kinds)):
        best = max(best, _columns(problem, measured, problem.gpu_ready if not number else first_ready))
    if any(len(kind.parallel_plans) > 1 for kind in kinds):
        best = max(best, _weighed(problem, kinds, best) * (1 - _ROUNDING))
    return best


def _with_gangs(problem: Problem) -> float:
    """Return a bound for problems with gangs.

    A gang's time and GPU work are divided among its partitions in proportion to size (fixed parts: equally).
    Each sub-epoch then counts with the minimum over gangs and single workers, in its model's row and in the
    work of all GPUs.
    """
    rows, work = [0.0], 0.0
    for model in range(problem.num_models):
        row = 0.0
        for partition, size in enumerate(problem.sizes):
            parallel_plans = [
                parallel_plan
                for w in problem.places(model, partition)
                for parallel_plan in problem.parallel_plans[model][w]
            ]
            gangs = problem.gangs[model]
            shares = [(gang.seconds * size + gang.fixed / gang.workers, gang) for gang in gangs]
            sub_epochs = _sub_epochs(problem, model, 1 << partition)
            row += sub_epochs * min(
                [parallel_plan.sub_epoch_s(size) for parallel_plan in parallel_plans]
                + [seconds for seconds, _ in shares]
            )
            work += sub_epochs * min(
                [parallel_plan.sub_epoch_s(size) * parallel_plan.gpus for parallel_plan in parallel_plans]
                + [seconds * gang.workers * gang.gpus for seconds, gang in shares]
            )
        rows.append(problem.model_ready[model] + row if row else 0.0)
    ready = [at for gpus in problem.gpu_ready for at in gpus]
    return max(*rows, filled_s(ready, work) if work else 0.0) * (1 - _ROUNDING)


# --- rows ---------------------------------------------------------------------------------------


def _chain(problem: Problem, model: int) -> float:
    """Return the earliest end of a model that runs alone.

    Earliest ready first is optimal for one machine with release times. Epochs follow each other.
    """
    now = problem.model_ready[model]
    for mask in _epochs(problem, model):
        sub_epochs = [_fastest(problem, model, p) for p in range(problem.num_partitions) if mask >> p & 1]
        for ready, seconds in sorted(sub_epochs):
            now = max(now, ready) + seconds
    return now if _sub_epochs(problem, model, problem.all_partitions) else 0.0


def _epochs(problem: Problem, model: int) -> Iterator[int]:
    yield problem.remaining_partitions[model]
    for _ in range(problem.epochs - 1):
        yield problem.all_partitions


def _fastest(problem: Problem, model: int, partition: int) -> tuple[float, float]:
    """Return the earliest possible start and the minimum seconds, possibly of different workers."""
    parallel_plans = [
        (w, parallel_plan)
        for w in problem.places(model, partition)
        for parallel_plan in problem.parallel_plans[model][w]
    ]
    size = problem.sizes[partition]
    return min(problem.ready(w, parallel_plan.gpus) for w, parallel_plan in parallel_plans), min(
        parallel_plan.sub_epoch_s(size) for _, parallel_plan in parallel_plans
    )


def _sub_epochs(problem: Problem, model: int, mask: int) -> int:
    """Count the model's remaining sub-epochs on the partitions of the mask."""
    first = (problem.remaining_partitions[model] & mask).bit_count()
    return first + (problem.epochs - 1) * (problem.all_partitions & mask).bit_count()


# --- columns ------------------------------------------------------------------------------------


def _shares(problem: Problem, kinds: list[_Kind]) -> Iterator[list[_Kind]]:
    """Yield the kinds of sub-epochs with different measures of their share of a worker.

    First the plain share, then the dual feasible functions u of Fekete and Schepers (2001): fewer than t GPUs
    count as 0 and more than all but t as the whole worker, because only fewer than t fit next to them. With t
    = half of the GPUs, sub-epochs that need more than half exclude each other.
    """
    yield kinds
    counts = {
        (round(parallel_plan.share * problem.gpus[parallel_plan.worker]), problem.gpus[parallel_plan.worker])
        for kind in kinds
        for parallel_plan in kind.parallel_plans
    }
    thresholds = {
        t for used, total in counts for t in (used + 1, total - used + 1) if 1 < t <= (total + 1) // 2
    }
    for least in sorted(thresholds)[-_MAX_THRESHOLDS:]:
        yield [
            kind._replace(
                parallel_plans=tuple(
                    _rounded(problem, parallel_plan, least) for parallel_plan in kind.parallel_plans
                )
            )
            for kind in kinds
        ]


def _rounded(problem: Problem, parallel_plan: _Option, least: int) -> _Option:
    total = problem.gpus[parallel_plan.worker]
    gpus = round(parallel_plan.share * total)
    if 2 * least > total:
        return parallel_plan._replace(share=0.0 if 2 * gpus < total else 1.0 if 2 * gpus > total else 0.5)
    return parallel_plan._replace(
        share=0.0 if gpus < least else 1.0 if gpus > total - least else parallel_plan.share
    )


def _kinds(problem: Problem) -> list[_Kind]:
    amounts: dict[tuple[int, tuple[int, ...], float], float] = defaultdict(float)
    for model, row in enumerate(problem.parallel_plans):
        # Without fixed parts, all sizes form one kind: fewer kinds allow more rounds of the weighted bound.
        is_fixed = any(parallel_plan.fixed for parallel_plans in row for parallel_plan in parallel_plans)
        for p, size in enumerate(problem.sizes):
            if sub_epochs := _sub_epochs(problem, model, 1 << p):
                of_size = size if is_fixed else 1.0
                amounts[model, problem.places(model, p), of_size] += sub_epochs * size / of_size
    return [
        _Kind(model, amount, _parallel_plans(problem, model, places, size))
        for (model, places, size), amount in amounts.items()
    ]


def _parallel_plans(
    problem: Problem, model: int, places: tuple[int, ...], size: float
) -> tuple[_Option, ...]:
    return tuple(
        _Option(w, parallel_plan.gpus / problem.gpus[w], parallel_plan.sub_epoch_s(size))
        for w in places
        for parallel_plan in problem.parallel_plans[model][w]
    )


def _columns(problem: Problem, kinds: list[_Kind], ready: Sequence[Sequence[float]]) -> float:
    """Return the latest end of any worker set.

    The set must run all sub-epochs that fit nowhere else, on all its GPUs. Tests the holder sets that occur,
    and all workers together.

    Args:
        ready: ready times of each worker's GPUs.
    """
    loads: dict[int, float] = defaultdict(float)
    for kind in kinds:
        mask = 0
        for parallel_plan in kind.parallel_plans:
            mask |= 1 << parallel_plan.worker
        loads[mask] += kind.amount * min(
            parallel_plan.share * parallel_plan.seconds * problem.gpus[parallel_plan.worker]
            for parallel_plan in kind.parallel_plans
        )
    sets = {mask for mask in loads if mask.bit_count() == 1 or len(loads) <= _MAX_SETS}
    sets.add((1 << problem.num_workers) - 1)
    return max(
        _filled(ready, workers, sum(load for mask, load in loads.items() if not mask & ~workers))
        for workers in sets
    )


def _filled(ready: Sequence[Sequence[float]], workers: int, load: float) -> float:
    """Return when the workers of the mask have completed `load` GPU-seconds."""
    if not load:
        return 0.0
    return filled_s((at for w, gpus in enumerate(ready) if workers >> w & 1 for at in gpus), load)


# --- rows against columns -----------------------------------------------------------------------


def _weighed(problem: Problem, kinds: list[_Kind], best: float) -> float:
    """Bound the linear relaxation, in which a sub-epoch may be divided among its parallel plans.

    For weights y of workers and z of models that sum to 1, the makespan C satisfies

        C >= sum_w y_w (ready_w + load_w) + sum_m z_m (ready_m + chain_m)
          >= sum_w y_w ready_w + sum_m z_m ready_m + sum_sub_epochs min_parallel_plans seconds * (share * y_w
          + z_m),

    for any weights. Multiplicative updates (Arora, Hazan and Kale, 2012) find good ones: give each sub-epoch
    its cheapest parallel plan, then raise the weight of workers and models with more work than the weighted
    mean. Workers start with weights proportional to their speed. A worker's ready time is the mean over its
    GPUs. Ready times are capped at `best`, a known bound: a GPU that is ready later may stay unused.
    """
    ready = [sum(min(best, at) for at in gpus) / len(gpus) for gpus in problem.gpu_ready]
    ready += [min(best, at) for at in problem.model_ready]
    weights = best_weights = _first_weights(problem, kinds, best)
    sums, highest, step, failures = ready, 0.0, 1.0, 0
    for number in range(max(1, _EVALUATIONS // sum(len(kind.parallel_plans) for kind in kinds))):
        found, bound = _respond(kinds, problem.num_workers, weights, ready)
        failures = 0 if bound > highest else failures + 1
        if not failures:
            highest, best_weights = bound, weights
        elif failures == _MAX_STALLED_STEPS:
            weights, step, failures = best_weights, step * 0.7, 0
        share = 1 - _MOMENTUM if number else 1.0
        sums = [old + share * (new - old) for old, new in zip(sums, found, strict=True)]
        # The sums belong to a solution of the relaxation, so no weights give a bound above the largest sum.
        if step < _LEAST_STEP or max(sums) <= max(best, highest) * (1 + _CLOSE):
            break
        weights = _updated(weights, sums, step)
    return highest


def _first_weights(problem: Problem, kinds: list[_Kind], best: float) -> list[float]:
    """Return initial weights: workers by mean speed, models by closeness to the bound."""
    times: list[list[float]] = [[] for _ in range(problem.num_workers)]
    rows = [0.0] * problem.num_models
    for kind in kinds:
        for parallel_plan in kind.parallel_plans:
            times[parallel_plan.worker].append(parallel_plan.share * parallel_plan.seconds)
        rows[kind.model] += kind.amount * min(parallel_plan.seconds for parallel_plan in kind.parallel_plans)
    speeds = [len(found) / sum(found) if found else 0.0 for found in times]
    closeness = [(row / best) ** 8 for row in rows]
    return _normalized(
        [speed / sum(speeds) for speed in speeds] + [each / (2 * problem.num_models) for each in closeness]
    )


def _updated(weights: list[float], sums: list[float], step: float) -> list[float]:
    mean = sum(weight * value for weight, value in zip(weights, sums, strict=True))
    return _normalized(
        [
            weight * math.exp(step * max(-1.0, min(1.0, value / mean - 1)))
            for weight, value in zip(weights, sums, strict=True)
        ]
    )


def _normalized(weights: list[float]) -> list[float]:
    total = sum(weights)
    return [weight / total for weight in weights]


def _respond(
    kinds: list[_Kind], num_workers: int, weights: list[float], ready: list[float]
) -> tuple[list[float], float]:
    """Give each sub-epoch its cheapest parallel plan; return the sums and the total cost."""
    sums = list(ready)
    cost = sum(weight * at for weight, at in zip(weights, ready, strict=True))
    for model, amount, parallel_plans in kinds:
        row = num_workers + model
        least = math.inf
        for parallel_plan in parallel_plans:
            if (
                price := parallel_plan.seconds
                * (parallel_plan.share * weights[parallel_plan.worker] + weights[row])
            ) < least:
                least, chosen = price, parallel_plan
        cost += amount * least
        sums[chosen.worker] += amount * chosen.share * chosen.seconds
        sums[row] += amount * chosen.seconds
    return sums, cost
