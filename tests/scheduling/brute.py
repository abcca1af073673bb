"""Find the shortest makespan of a tiny instance by exhaustive search.

The search is independent of the package's bounds, policies and planner. It is complete for this reason. Take
a shortest schedule with the least sum of start times.

- Append its sub-epochs in order of start time, each as early as its model and enough GPUs permit. By
induction no sub-epoch starts later than in the schedule, because each GPU that is busy then was busy before.
So appending in some order with non-decreasing starts (ties by model) finds that schedule.

- No sub-epoch starts at or after the earliest possible end of another sub-epoch that is not yet appended:
that other sub-epoch could move to the front without delay to the rest, with a smaller sum. So the search
tries only sub-epochs that start before the earliest possible end (active schedules, Giffler and Thompson,
1960).

It prunes branches whose simple lower bound is not below the best makespan.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from cerebro.scheduling.problem import Problem
from cerebro.scheduling.schedule import Placement, Schedule


class _State(NamedTuple):
    """The state after the appended sub-epochs."""

    open: tuple[int, ...]
    """untrained partitions of the current epoch, by model."""
    epoch: tuple[int, ...]
    model_free: tuple[float, ...]
    gpus_free: tuple[tuple[float, ...], ...]
    """By worker, the ascending times when its GPUs become free."""
    last: tuple[float, int]
    """Start and model of the newest sub-epoch."""


class _Append(NamedTuple):
    start: float
    model: int
    end: float
    partition: int
    worker: int
    gpus: int


def optimum(problem: Problem) -> Schedule:
    """Return a schedule of least makespan.

    Feasible up to about 12 sub-epochs, or 16 in an open shop.
    """
    search = _Search(problem)
    search.descend(_first(problem), [])
    return search.best


def optimal_makespan(problem: Problem) -> float:
    return optimum(problem).makespan


def all_makespans(problem: Problem) -> set[float]:
    """Return the makespans of all append orders without pruning, for a handful of sub-epochs."""
    found: set[float] = set()

    def descend(state: _State, makespan: float) -> None:
        choices = _choices(problem, state)
        if not choices:
            found.add(makespan)
        for choice in choices:
            descend(_after(problem, state, choice), max(makespan, choice.end))

    descend(_first(problem), 0.0)
    return found


class _Search:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.best = Schedule(())
        self.makespan = math.inf
        self.floor = _floor(problem, _first(problem))
        self.seen: set[tuple[_State, float]] = set()

    def descend(self, state: _State, sub_epochs: list[Placement]) -> None:
        makespan = max((sub_epoch.end for sub_epoch in sub_epochs), default=0.0)
        if max(makespan, _floor(self.problem, state)) >= self.makespan or (state, makespan) in self.seen:
            return
        self.seen.add((state, makespan))
        choices = _choices(self.problem, state)
        if not choices:
            self.best, self.makespan = Schedule.of(sub_epochs), makespan
            return
        earliest_end = min(choice.end for choice in choices)
        for choice in sorted(choices):
            if choice.start < earliest_end and (choice.start, choice.model) > state.last:
                sub_epoch = Placement(
                    model=choice.model,
                    partition=choice.partition,
                    worker=choice.worker,
                    start=choice.start,
                    end=choice.end,
                    epoch=state.epoch[choice.model],
                    gpus=choice.gpus,
                )
                self.descend(_after(self.problem, state, choice), [*sub_epochs, sub_epoch])
            if self.makespan <= self.floor:
                return


def _first(problem: Problem) -> _State:
    begins_later = [not mask and problem.epochs > 1 for mask in problem.remaining_partitions]
    return _State(
        open=tuple(
            problem.all_partitions if later else mask
            for mask, later in zip(problem.remaining_partitions, begins_later, strict=True)
        ),
        epoch=tuple(2 if later else 1 for later in begins_later),
        model_free=problem.model_ready,
        gpus_free=problem.gpu_ready,
        last=(-1.0, -1),
    )


def _choices(problem: Problem, state: _State) -> list[_Append]:
    found = []
    for model, mask in enumerate(state.open):
        for partition in range(problem.num_partitions):
            if mask >> partition & 1:
                found += _parallel_plans(problem, state, model, partition)
    return found


def _parallel_plans(problem: Problem, state: _State, model: int, partition: int) -> list[_Append]:
    found = []
    for worker in problem.holders[partition]:
        for parallel_plan in problem.parallel_plans[model][worker]:
            start = max(state.model_free[model], state.gpus_free[worker][parallel_plan.gpus - 1])
            end = start + parallel_plan.seconds * problem.sizes[partition] + parallel_plan.fixed
            found.append(_Append(start, model, end, partition, worker, parallel_plan.gpus))
    return found


def _after(problem: Problem, state: _State, choice: _Append) -> _State:
    model, worker = choice.model, choice.worker
    mask, epoch = state.open[model] & ~(1 << choice.partition), state.epoch[model]
    if not mask and epoch < problem.epochs:
        mask, epoch = problem.all_partitions, epoch + 1
    occupied = (choice.end,) * choice.gpus
    gpus = tuple(sorted((*state.gpus_free[worker][choice.gpus :], *occupied)))
    return _State(
        open=_with(state.open, model, mask),
        epoch=_with(state.epoch, model, epoch),
        model_free=_with(state.model_free, model, choice.end),
        gpus_free=(*state.gpus_free[:worker], gpus, *state.gpus_free[worker + 1 :]),
        last=(choice.start, model),
    )


def _floor(problem: Problem, state: _State) -> float:
    """Bound the rest from below by the fastest time of each model and the GPU-seconds that each worker alone
    can supply."""
    floor = 0.0
    area = [0.0] * problem.num_workers
    for model, mask in enumerate(state.open):
        chain = 0.0
        for partition in range(problem.num_partitions):
            sub_epochs = (mask >> partition & 1) + problem.epochs - state.epoch[model]
            if not sub_epochs:
                continue
            size, places = problem.sizes[partition], problem.places(model, partition)
            parallel_plans = [
                parallel_plan for w in places for parallel_plan in problem.parallel_plans[model][w]
            ]
            chain += sub_epochs * min(
                parallel_plan.seconds * size + parallel_plan.fixed for parallel_plan in parallel_plans
            )
            if len(places) == 1:
                area[places[0]] += sub_epochs * min(
                    parallel_plan.gpus * (parallel_plan.seconds * size + parallel_plan.fixed)
                    for parallel_plan in parallel_plans
                )
        if chain:
            floor = max(floor, state.model_free[model] + chain)
    for total, free in zip(area, state.gpus_free, strict=True):
        if total:
            # Do not wait for a GPU that becomes free after this time.
            floor = max(floor, min((total + sum(free[:n])) / n for n in range(1, len(free) + 1)))
    return floor


def _with(values: tuple, place: int, value: float) -> tuple:  # type: ignore[type-arg]
    return (*values[:place], value, *values[place + 1 :])
