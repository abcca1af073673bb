"""Simulated deviations from a plan: real durations of sub-epochs, slow workers, and absences. For `dispatch`.

The same seed gives every policy the same real durations, because they are drawn per sub-epoch, independently
of the order. Policies can therefore be compared with each other and with the clairvoyant bound.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from cerebro.errors import InstanceError
from cerebro.scheduling.problem import Problem

Span = tuple[float, float, float]
"""(from, to, speed): seconds, and work per second."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Straggler:
    """A worker that takes `factor` times as long for `seconds` after `start`."""

    worker: int
    factor: float
    start: float = 0.0
    seconds: float = math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class Outage:
    """An absence of a worker for `seconds` after `start`. Its running sub-epochs are lost and repeated."""

    worker: int
    start: float
    seconds: float = math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class Join:
    """A worker that joins at `at` (seconds), with its partitions."""

    worker: int
    at: float


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Deviations of a run from its estimates.

    Attributes:
        sigma: standard deviation of the logarithm of each sub-epoch's factor, which is log-normal with mean
            1.
        doubts: for each model, the same for a factor common to its sub-epochs; () for known times.
        stragglers: slow workers; overlapping factors multiply.
        outages: absences of workers.
        joins: late workers.
        estimates: sub-epoch times for the policy: the problem's, or all equal, as in a cold start.

    Raises:
        InstanceError: a number is out of range.
    """

    sigma: float = 0.0
    doubts: tuple[float, ...] = ()
    stragglers: tuple[Straggler, ...] = ()
    outages: tuple[Outage, ...] = ()
    joins: tuple[Join, ...] = ()
    estimates: Literal["given", "equal"] = "given"

    def __post_init__(self) -> None:
        if not 0 <= self.sigma < math.inf:
            raise InstanceError(f"sigma is {self.sigma}, expected a finite number of at least 0")
        if not all(0 <= doubt < math.inf for doubt in self.doubts):
            raise InstanceError(f"doubts are {self.doubts}, expected finite numbers of at least 0")
        for straggler in self.stragglers:
            if not 0 < straggler.factor < math.inf:
                raise InstanceError(f"{straggler}: expected a finite factor above 0")
        timed: tuple[Straggler | Outage, ...] = (*self.stragglers, *self.outages)
        for event in timed:
            if not (0 <= event.start < math.inf and event.seconds > 0):
                raise InstanceError(f"{event}: expected a start of at least 0 and more than 0 seconds")
        for join in self.joins:
            if not 0 <= join.at < math.inf:
                raise InstanceError(f"{join}: expected a time of at least 0")

    def absences(self, worker: int) -> list[tuple[float, float]]:
        """Return the worker's absences as (from, to), ascending and disjoint."""
        away = [(0.0, join.at) for join in self.joins if join.worker == worker and join.at > 0]
        away += [(o.start, o.start + o.seconds) for o in self.outages if o.worker == worker]
        merged_absences: list[tuple[float, float]] = []
        for start, end in sorted(away):
            if merged_absences and start <= merged_absences[-1][1]:
                merged_absences[-1] = (merged_absences[-1][0], max(end, merged_absences[-1][1]))
            else:
                merged_absences.append((start, end))
        return merged_absences

    def estimated(self, problem: Problem) -> Problem:
        """Return the problem with the policy's estimates."""
        if self.estimates == "given":
            return problem
        parallel_plans = [
            parallel_plan for row in problem.parallel_plans for cell in row for parallel_plan in cell
        ]
        mean = sum(parallel_plan.seconds for parallel_plan in parallel_plans) / len(parallel_plans)
        fixed = sum(parallel_plan.fixed for parallel_plan in parallel_plans) / len(parallel_plans)
        equal = tuple(
            tuple(
                tuple(replace(parallel_plan, seconds=mean, fixed=fixed) for parallel_plan in cell)
                for cell in row
            )
            for row in problem.parallel_plans
        )
        return replace(problem, parallel_plans=equal)


class Reality:
    """Real durations of a problem under conditions.

    Args:
        problem: must have one parallel plan for each model and worker.
        conditions: the deviations.
        seed: seed of the sub-epochs' factors.

    Raises:
        InstanceError: a condition names a worker that does not exist, or the number of doubts is wrong.
    """

    def __init__(self, problem: Problem, conditions: Conditions, seed: int) -> None:
        events: tuple[Straggler | Outage | Join, ...]
        events = (*conditions.stragglers, *conditions.outages, *conditions.joins)
        for event in events:
            if not 0 <= event.worker < problem.num_workers:
                raise InstanceError(
                    f"{type(event).__name__.lower()} of worker {event.worker}, expected a worker from 0 to "
                    f"{problem.num_workers - 1}"
                )
        self._problem = problem
        if conditions.doubts and len(conditions.doubts) != problem.num_models:
            raise InstanceError(f"{len(conditions.doubts)} doubts for {problem.num_models} models")
        self._factors = _factors(problem, conditions, seed)
        workers = range(problem.num_workers)
        self.absences = [conditions.absences(worker) for worker in workers]
        self._slow = [_spans(conditions, worker, ()) for worker in workers]
        self._present = [_spans(conditions, worker, self.absences[worker]) for worker in workers]

    def work(self, model: int, partition: int, worker: int, epoch: int) -> float:
        """Return the sub-epoch's seconds on the worker at normal speed."""
        seconds = self._problem.seconds(model, partition, worker)
        if not self._factors:
            return seconds
        sub_epoch = (
            (epoch - 1) * self._problem.num_models + model
        ) * self._problem.num_partitions + partition
        return seconds * self._factors[sub_epoch]

    def end(self, worker: int, start: float, work: float) -> float:
        """Return the end of work that starts at `start`, if the worker stays."""
        return _done(self._slow[worker], start, work) if len(self._slow[worker]) > 1 else start + work

    def bound(self) -> float:
        """Return the clairvoyant bound: no schedule ends sooner, even with all knowledge in advance.

        The larger of two bounds. A model needs the sum of its sub-epochs, each on its fastest worker. A
        worker must do the sub-epochs that only it can run, at reduced speed while it is slow and none while
        it is away. Work lost in outages does not count: with advance knowledge it would not start.
        """
        problem = self._problem
        models, workers = [0.0] * problem.num_models, [0.0] * problem.num_workers
        for model, partition, epoch in self._sub_epochs():
            places = problem.places(model, partition)
            works = {w: self.work(model, partition, w, epoch) for w in places}
            models[model] += min(work / self._fastest(w) for w, work in works.items())
            if len(places) == 1:
                (worker,) = places
                share = problem.parallel_plans[model][worker][0].gpus / problem.gpus[worker]
                workers[worker] += works[worker] * share
        ends = [ready + work for ready, work in zip(problem.model_ready, models, strict=True) if work]
        ends += [_done(self._present[w], problem.ready(w), work) for w, work in enumerate(workers) if work]
        return max(ends, default=0.0)

    def _sub_epochs(self) -> Iterator[tuple[int, int, int]]:
        problem = self._problem
        for model, remaining_partitions in enumerate(problem.remaining_partitions):
            for partition in range(problem.num_partitions):
                first = 1 if remaining_partitions >> partition & 1 else 2
                yield from ((model, partition, epoch) for epoch in range(first, problem.epochs + 1))

    def _fastest(self, worker: int) -> float:
        return max(speed for _, _, speed in self._slow[worker])


def _factors(problem: Problem, conditions: Conditions, seed: int) -> list[float]:
    """Return the factor of each sub-epoch, by epoch, model and partition.

    [] stands for factors of 1 everywhere.
    """
    sigma, doubts = conditions.sigma, conditions.doubts
    if not sigma and not any(doubts):
        return []
    rng = random.Random(f"unit times {seed}")
    count = problem.epochs * problem.num_models * problem.num_partitions
    sub_epochs = [_drawn(rng, sigma) for _ in range(count)]
    if not any(doubts):
        return sub_epochs
    rng = random.Random(f"models {seed}")
    models = [_drawn(rng, doubt) for doubt in doubts]
    return [
        factor * models[sub_epoch // problem.num_partitions % problem.num_models]
        for sub_epoch, factor in enumerate(sub_epochs)
    ]


def _drawn(rng: random.Random, sigma: float) -> float:
    # The mean of a log-normal is exp(mu + sigma^2 / 2).
    return math.exp(sigma * rng.gauss(0.0, 1.0) - sigma * sigma / 2)


def _spans(conditions: Conditions, worker: int, absences: Sequence[tuple[float, float]]) -> list[Span]:
    """Return the worker's speed over time, as consecutive pieces."""
    slow = [(s.start, s.start + s.seconds, 1 / s.factor) for s in conditions.stragglers if s.worker == worker]
    slow += [(start, end, 0.0) for start, end in absences]
    edges = sorted({0.0, math.inf, *(start for start, _, _ in slow), *(end for _, end, _ in slow)})
    return [
        (start, end, math.prod(speed for begin, until, speed in slow if begin <= start < until))
        for start, end in pairwise(edges)
    ]


def _done(spans: Sequence[Span], start: float, work: float) -> float:
    """Return when work that starts at `start` is complete; infinity for never."""
    for first, end, speed in spans:
        if end <= start or not speed:
            continue
        begin = max(first, start)
        if speed * (end - begin) >= work:
            return begin + work / speed
        work -= speed * (end - begin)
    return math.inf
