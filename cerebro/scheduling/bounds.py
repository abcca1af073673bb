"""Lower bounds on the makespan: what no schedule can beat, so that one which meets it is known to be optimal.

For the open shop LB = max(largest row sum, largest column sum) of the sub-epoch times (seed paper, section 5.1): no
model is faster than all its sub-epochs one after the other, no worker than all of its own. `lower_bound` carries that
over to every `Problem`: a row is a chain of sub-epochs at their fastest, one epoch after the other; a column is what is
left to a *set* of workers, since with replicas nobody knows which of the holders will run a sub-epoch; and where a
sub-epoch may run in several ways, row and column pull in different directions, which is bounded by weighing them
against each other.

Knows problems only: no dispatch state, policy or schedule. Every bound holds by itself; the largest is taken.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cerebro.scheduling.problem import Problem, filled_s

_MAX_SETS = 300
"""Distinct sets of holders beyond which the plain column bound looks at whole clusters and single workers only."""
_MAX_THRESHOLDS = 16
_EVALUATIONS = 200_000
"""Ways of running a sub-epoch that the weighing may look at in all: some 80 ms."""
_MOMENTUM = 0.8
_MAX_STALLED_STEPS = 3
"""Rounds without a better bound after which the weighing goes back to its best weights with smaller steps."""
_LEAST_STEP = 0.02
_CLOSE = 1e-4
"""The weighing stops this near to the optimum of its relaxation (relative)."""
_ROUNDING = 1e-12
"""More than the weighing can be wrong by, relatively: a bound that meets the optimum must not exceed it by rounding."""


class _ParallelPlan(NamedTuple):
    """A way to run a sub-epoch: `share` of the GPUs of `worker` for `seconds`."""

    worker: int
    share: float
    seconds: float


class _Kind(NamedTuple):
    """So many sub-epochs of a model with the same ways. Times are those of a partition of size 1, and `amount` is the
    sum of the sub-epochs' sizes; where a part of them is fixed, times are those of a sub-epoch, and `amount` is the
    number of
    sub-epochs."""

    model: int
    amount: float
    parallel_plans: tuple[_ParallelPlan, ...]


def lower_bound(problem: Problem) -> float:
    """Seconds that every schedule of the problem takes at least.

    For an open shop it is max(largest row sum, largest column sum). Sums of floats: true to a relative error of some
    1e-12. Takes up to some 50 ms for a problem with a choice of workers or strategies, a few for one without.
    """
    if any(problem.gangs):
        return _with_gangs(problem)
    best = max((_chain(problem, model) for model in range(problem.num_models)), default=0.0)
    kinds = _kinds(problem)
    # While a GPU is not ready, a sub-epoch that needs most of them may find all it needs; only of plain shares it is
    # known how much is left.
    whole = [(gpus[0],) * len(gpus) for gpus in problem.gpu_ready]
    for number, measured in enumerate(_shares(problem, kinds)):
        best = max(best, _columns(problem, measured, problem.gpu_ready if not number else whole))
    if any(len(kind.parallel_plans) > 1 for kind in kinds):
        best = max(best, _weighed(problem, kinds, best) * (1 - _ROUNDING))
    return best


def _with_gangs(problem: Problem) -> float:
    """Where a sub-epoch may be on a set of partitions. The time of such a sub-epoch, and what it takes of GPUs, is
    shared by the partitions of its set in proportion to their sizes (what is fixed: equally), so that a visit needs the
    least of that
    and of what it takes alone: a model's visits follow each other, and all GPUs together do no more than they can."""
    rows, work = [0.0], 0.0
    for model in range(problem.num_models):
        row = 0.0
        for partition, size in enumerate(problem.sizes):
            parallel_plans = [
                parallel_plan
                for w in problem.places(model, partition)
                for parallel_plan in problem.strategies[model][w]
            ]
            gangs = problem.gangs[model]
            shares = [(gang.seconds * size + gang.fixed / gang.members, gang) for gang in gangs]
            visits = _visits(problem, model, 1 << partition)
            row += visits * min(
                [parallel_plan.sub_epoch_s(size) for parallel_plan in parallel_plans]
                + [seconds for seconds, _ in shares]
            )
            work += visits * min(
                [parallel_plan.sub_epoch_s(size) * parallel_plan.gpus for parallel_plan in parallel_plans]
                + [seconds * gang.members * gang.gpus for seconds, gang in shares]
            )
        rows.append(problem.model_ready[model] + row if row else 0.0)
    ready = [at for gpus in problem.gpu_ready for at in gpus]
    return max(*rows, filled_s(ready, work) if work else 0.0) * (1 - _ROUNDING)


# --- rows ---------------------------------------------------------------------------------------


def _chain(problem: Problem, model: int) -> float:
    """A model by itself: its sub-epochs one after the other, the earliest ready first, which is best for one machine
    with release times; no sub-epoch of an epoch before the last of the epoch before."""
    now = problem.model_ready[model]
    for mask in _epochs(problem, model):
        sub_epochs = [_fastest(problem, model, p) for p in range(problem.num_partitions) if mask >> p & 1]
        for ready, seconds in sorted(sub_epochs):
            now = max(now, ready) + seconds
    return now if _visits(problem, model, problem.all_partitions) else 0.0


def _epochs(problem: Problem, model: int) -> Iterator[int]:
    yield problem.left[model]
    for _ in range(problem.epochs - 1):
        yield problem.all_partitions


def _fastest(problem: Problem, model: int, partition: int) -> tuple[float, float]:
    """When it may begin at the earliest, and the fewest seconds that it takes: not necessarily in the same place."""
    parallel_plans = [
        (w, parallel_plan)
        for w in problem.places(model, partition)
        for parallel_plan in problem.strategies[model][w]
    ]
    size = problem.sizes[partition]
    return min(problem.ready(w, parallel_plan.gpus) for w, parallel_plan in parallel_plans), min(
        parallel_plan.sub_epoch_s(size) for _, parallel_plan in parallel_plans
    )


def _visits(problem: Problem, model: int, mask: int) -> int:
    """How many visits the model has left to the partitions of the mask."""
    first = (problem.left[model] & mask).bit_count()
    return first + (problem.epochs - 1) * (problem.all_partitions & mask).bit_count()


# --- columns ------------------------------------------------------------------------------------


def _shares(problem: Problem, kinds: list[_Kind]) -> Iterator[list[_Kind]]:
    """The kinds of sub-epochs, the share of a worker that each takes measured in several ways.

    Plainly (GPUs of all its GPUs), and by the dual feasible functions u of Fekete and Schepers (2001): fewer than t
    GPUs count as nothing and more than all but t as everything, because no more than that fits beside them. At t =
    half of the GPUs it says that sub-epochs which need more than half exclude each other.
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


def _rounded(problem: Problem, parallel_plan: _ParallelPlan, least: int) -> _ParallelPlan:
    total = problem.gpus[parallel_plan.worker]
    gpus = round(parallel_plan.share * total)
    if 2 * least > total:
        return parallel_plan._replace(share=0.0 if 2 * gpus < total else 1.0 if 2 * gpus > total else 0.5)
    return parallel_plan._replace(
        share=0.0 if gpus < least else 1.0 if gpus > total - least else parallel_plan.share
    )


def _kinds(problem: Problem) -> list[_Kind]:
    amounts: dict[tuple[int, tuple[int, ...], float], float] = defaultdict(float)
    for model, row in enumerate(problem.strategies):
        # Where nothing is fixed, sub-epochs of all sizes are of one kind: the fewer kinds, the longer they are weighed.
        is_fixed = any(parallel_plan.fixed for parallel_plans in row for parallel_plan in parallel_plans)
        for p, size in enumerate(problem.sizes):
            if visits := _visits(problem, model, 1 << p):
                of_size = size if is_fixed else 1.0
                amounts[model, problem.places(model, p), of_size] += visits * size / of_size
    return [
        _Kind(model, amount, _parallel_plans(problem, model, places, size))
        for (model, places, size), amount in amounts.items()
    ]


def _parallel_plans(
    problem: Problem, model: int, places: tuple[int, ...], size: float
) -> tuple[_ParallelPlan, ...]:
    return tuple(
        _ParallelPlan(w, parallel_plan.gpus / problem.gpus[w], parallel_plan.sub_epoch_s(size))
        for w in places
        for parallel_plan in problem.strategies[model][w]
    )


def _columns(problem: Problem, kinds: list[_Kind], ready: Sequence[Sequence[float]]) -> float:
    """The most that is left to any set of workers: sub-epochs that can run nowhere else, on all of its GPUs at once.

    Looks at the sets of holders that occur, and at all workers together.

    Args:
        ready: of each worker, when its GPUs are free.
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
    """When the workers of the mask have done so many GPU-seconds, each GPU busy from when it is ready."""
    if not load:
        return 0.0
    return filled_s((at for w, gpus in enumerate(ready) if workers >> w & 1 for at in gpus), load)


# --- rows against columns -----------------------------------------------------------------------


def _weighed(problem: Problem, kinds: list[_Kind], best: float) -> float:
    """The bound of the linear relaxation, in which a sub-epoch may be split over its ways, from below.

    For weights y of workers and z of models that sum to 1, the makespan C satisfies

        C >= sum_w y_w (ready_w + load_w) + sum_m z_m (ready_m + chain_m)
          >= sum_w y_w ready_w + sum_m z_m ready_m + sum_sub_epochs min_parallel_plans seconds * (share * y_w + z_m),

    whatever the weights: any will do. Good ones come from multiplicative updates (Arora, Hazan and Kale, 2012): who has
    more to do than the weighted mean, when each sub-epoch goes where that costs least, gains weight; to begin with
    workers weigh as much as they are fast. A worker's ready time is the mean of its GPUs': so much of it is not there.
    A ready time is taken for at most `best`, a bound already: what is ready later may stay unused.
    """
    ready = [sum(min(best, at) for at in gpus) / len(gpus) for gpus in problem.gpu_ready]
    ready += [min(best, at) for at in problem.model_ready]
    weights = kept = _first_weights(problem, kinds, best)
    sums, highest, step, failures = ready, 0.0, 1.0, 0
    for number in range(max(1, _EVALUATIONS // sum(len(kind.parallel_plans) for kind in kinds))):
        found, bound = _respond(kinds, problem.num_workers, weights, ready)
        failures = 0 if bound > highest else failures + 1
        if not failures:
            highest, kept = bound, weights
        elif failures == _MAX_STALLED_STEPS:
            weights, step, failures = kept, step * 0.7, 0
        share = 1 - _MOMENTUM if number else 1.0
        sums = [old + share * (new - old) for old, new in zip(sums, found, strict=True)]
        # The sums are those of a solution of the relaxation: no weights say more than the largest.
        if step < _LEAST_STEP or max(sums) <= max(best, highest) * (1 + _CLOSE):
            break
        weights = _updated(weights, sums, step)
    return highest


def _first_weights(problem: Problem, kinds: list[_Kind], best: float) -> list[float]:
    """Of workers, by how fast they are on average; then of models, by how near each alone is to the bound."""
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
    """Each sub-epoch in its cheapest way at these weights: the sums of workers and of models, and what it all costs."""
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
