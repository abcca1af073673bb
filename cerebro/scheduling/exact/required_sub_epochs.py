"""Common input of the exact solvers: required sub-epochs, their options, timing of orders.

Solvers search for an order. This module computes its schedule in the problem's own seconds, free of integer
rounding and solver tolerances.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from cerebro.scheduling.problem import Problem
from cerebro.scheduling.schedule import Placement, Schedule

Time = TypeVar("Time", int, float)


class RequiredSubEpoch(NamedTuple):
    """A model on a partition in an epoch (from 1), by one of its options: placements that start at 0."""

    model: int
    partition: int
    epoch: int
    options: tuple[Placement, ...]


def required_sub_epochs(problem: Problem) -> tuple[RequiredSubEpoch, ...]:
    """Return all remaining sub-epochs, by model, epoch and partition."""
    return tuple(
        RequiredSubEpoch(m, p, epoch, _options(problem, m, p, epoch))
        for m in range(problem.num_models)
        for epoch in range(1, problem.epochs + 1)
        for p in range(problem.num_partitions)
        if epoch > 1 or problem.remaining_partitions[m] >> p & 1
    )


def placed(schedule: Schedule, wanted: Sequence[RequiredSubEpoch]) -> list[Placement]:
    """Return a schedule's sub-epochs in the order of start.

    Each gets an option at least as good as in the schedule.
    """
    find = {(v.model, v.partition, v.epoch): v for v in wanted}
    return [
        _place(find[sub_epoch.model, sub_epoch.partition, sub_epoch.epoch], sub_epoch)
        for sub_epoch in schedule.sub_epochs
    ]


def timed(problem: Problem, order: Sequence[Placement]) -> Schedule:
    """Build the schedule of an order, with every start as early as possible.

    In floating-point seconds.
    """
    begins = starts(order, [p.seconds for p in order], problem.model_ready, problem.gpu_ready)
    return Schedule.of(
        each._replace(start=begin, end=begin + each.seconds)
        for each, begin in zip(order, begins, strict=True)
    )


def starts(
    order: Iterable[Placement],
    lengths: Iterable[Time],
    model_ready: Sequence[Time],
    gpu_ready: Sequence[Sequence[Time]],
) -> list[Time]:
    """Return each sub-epoch's start if it waits only for its model and its GPUs.

    For the order of starts of a feasible schedule, no sub-epoch starts later than there: it takes the GPUs
    that have been free longest, and later ones never need them earlier.

    Args:
        order: sub-epochs; each model and each worker runs its own in this order.
        lengths: duration of each sub-epoch, in the same unit as both `ready` arguments.
        gpu_ready: ready time of each worker's GPUs, ascending.
    """
    model_free = list(model_ready)
    gpu_free = [list(ready) for ready in gpu_ready]
    found: list[Time] = []
    for each, length in zip(order, lengths, strict=True):
        free = gpu_free[each.worker]
        begin = max(model_free[each.model], free[each.gpus - 1])
        model_free[each.model] = begin + length
        gpu_free[each.worker] = sorted([begin + length] * each.gpus + free[each.gpus :])
        found.append(begin)
    return found


def twins(problem: Problem) -> list[list[int]]:
    """Return sets of models that differ only in name.

    A solver may fix the order of each set.
    """
    return [same for same in problem.twins() if len(same) > 1]


def canonical(problem: Problem, order: list[Placement], begins: Sequence[int]) -> list[Placement]:
    """Return the order with twins renamed.

    Their first sub-epochs then start in the order of their numbers.

    Args:
        begins: start of each sub-epoch.
    """
    first: dict[int, tuple[tuple[int, int], int]] = {}
    for each, begin in zip(order, begins, strict=True):
        key = ((each.epoch, each.partition), begin)
        first[each.model] = min(first.get(each.model, key), key)
    renamed = {m: m for m in range(problem.num_models)}
    for same in twins(problem):
        busy = [m for m in same if m in first]
        renamed.update(zip(sorted(busy, key=lambda m: first[m][1]), busy, strict=True))
    return [each._replace(model=renamed[each.model]) for each in order]


def _options(problem: Problem, model: int, partition: int, epoch: int) -> tuple[Placement, ...]:
    """Return the options without dominated ones.

    A dominated option needs no fewer GPUs and no less time than another on the same worker.
    """
    placements: list[Placement] = []
    for worker in dict.fromkeys(problem.places(model, partition)):
        size, fastest = problem.sizes[partition], float("inf")
        parallel_plans = (
            (parallel_plan.gpus, parallel_plan.sub_epoch_s(size), parallel_plan.technique)
            for parallel_plan in problem.parallel_plans[model][worker]
        )
        for gpus, seconds, technique in sorted(parallel_plans):
            if seconds < fastest:
                fastest = seconds
                placements.append(Placement(worker, model, partition, epoch, 0.0, seconds, gpus, technique))
    return tuple(placements)


def _place(completed: RequiredSubEpoch, sub_epoch: Placement) -> Placement:
    fitting = [o for o in completed.options if o.worker == sub_epoch.worker and o.gpus <= sub_epoch.gpus]
    return min(fitting, key=lambda option: option.seconds)
