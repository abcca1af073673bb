"""What a plan does not know: how long sub-epochs really take, and which workers are there.

The same seed gives the same real durations to every policy, because they belong to sub-epochs and not to the order in
which sub-epochs are drawn; so policies can be compared with each other and with a bound that knows everything in
advance.
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
"""(from, to, speed): seconds, and work done in each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Straggler:
    """A worker takes `factor` times as long from `start` on, for so many seconds."""

    worker: int
    factor: float
    start: float = 0.0
    seconds: float = math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class Outage:
    """A worker is away from `start` on, for so many seconds. What it runs then is lost and made again."""

    worker: int
    start: float
    seconds: float = math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class Join:
    """A worker is not there before `at` (seconds); the partitions it holds come with it."""

    worker: int
    at: float


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What befalls a run.

    Attributes:
        sigma: of the logarithm of each sub-epoch's factor, which is log-normal with mean 1.
        doubts: of each model, the same of a factor that all its sub-epochs share; none: the models' times are known.
        stragglers: slow workers; where two overlap, both count.
        outages: workers that go away.
        joins: workers that come later.
        estimates: what the policy is told of sub-epoch times: the problem's, or, as at a cold start, that all are
            equal.

    Raises:
        InstanceError: a number that makes no sense.
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
        """(from, to) of when the worker is not there: ascending, apart from each other."""
        away = [(0.0, join.at) for join in self.joins if join.worker == worker and join.at > 0]
        away += [(o.start, o.start + o.seconds) for o in self.outages if o.worker == worker]
        apart: list[tuple[float, float]] = []
        for start, end in sorted(away):
            if apart and start <= apart[-1][1]:
                apart[-1] = (apart[-1][0], max(end, apart[-1][1]))
            else:
                apart.append((start, end))
        return apart

    def estimated(self, problem: Problem) -> Problem:
        """The problem as the policy is told of it."""
        if self.estimates == "given":
            return problem
        parallel_plans = [
            parallel_plan for row in problem.strategies for cell in row for parallel_plan in cell
        ]
        mean = sum(parallel_plan.seconds for parallel_plan in parallel_plans) / len(parallel_plans)
        fixed = sum(parallel_plan.fixed for parallel_plan in parallel_plans) / len(parallel_plans)
        equal = tuple(
            tuple(
                tuple(replace(parallel_plan, seconds=mean, fixed=fixed) for parallel_plan in cell)
                for cell in row
            )
            for row in problem.strategies
        )
        return replace(problem, strategies=equal)


class Reality:
    """A problem under conditions: how long things really take.

    Args:
        problem: with one strategy for each model and worker.
        conditions: see there.
        seed: of the sub-epochs' factors.

    Raises:
        InstanceError: something befalls a worker that does not exist.
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
        """Seconds of the sub-epoch on the worker at its usual speed."""
        seconds = self._problem.seconds(model, partition, worker)
        if not self._factors:
            return seconds
        sub_epoch = (
            (epoch - 1) * self._problem.num_models + model
        ) * self._problem.num_partitions + partition
        return seconds * self._factors[sub_epoch]

    def end(self, worker: int, start: float, work: float) -> float:
        """When so much work is done that starts then, if the worker stays."""
        return _done(self._slow[worker], start, work) if len(self._slow[worker]) > 1 else start + work

    def bound(self) -> float:
        """No schedule ends sooner, whatever it knows in advance: the clairvoyant bound.

        The larger of two. A model needs the sum of its sub-epochs, each where it is fastest, one after the other. The
        sub-epochs that only one worker can run need their GPU-seconds of that worker's, which does nothing while it is
        away and less while it is slow. Work that is lost when a worker goes is not counted: who knows of the outage
        starts nothing that would be lost.
        """
        problem = self._problem
        models, workers = [0.0] * problem.num_models, [0.0] * problem.num_workers
        for model, partition, epoch in self._sub_epochs():
            places = problem.places(model, partition)
            works = {w: self.work(model, partition, w, epoch) for w in places}
            models[model] += min(work / self._fastest(w) for w, work in works.items())
            if len(places) == 1:
                (worker,) = places
                share = problem.strategies[model][worker][0].gpus / problem.gpus[worker]
                workers[worker] += works[worker] * share
        ends = [ready + work for ready, work in zip(problem.model_ready, models, strict=True) if work]
        ends += [_done(self._present[w], problem.ready(w), work) for w, work in enumerate(workers) if work]
        return max(ends, default=0.0)

    def _sub_epochs(self) -> Iterator[tuple[int, int, int]]:
        problem = self._problem
        for model, left in enumerate(problem.left):
            for partition in range(problem.num_partitions):
                first = 1 if left >> partition & 1 else 2
                yield from ((model, partition, epoch) for epoch in range(first, problem.epochs + 1))

    def _fastest(self, worker: int) -> float:
        return max(speed for _, _, speed in self._slow[worker])


def _factors(problem: Problem, conditions: Conditions, seed: int) -> list[float]:
    """Of every sub-epoch, by epoch, model and partition; empty if all are 1."""
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
    """The worker's speed over all time, piece by piece."""
    slow = [(s.start, s.start + s.seconds, 1 / s.factor) for s in conditions.stragglers if s.worker == worker]
    slow += [(start, end, 0.0) for start, end in absences]
    edges = sorted({0.0, math.inf, *(start for start, _, _ in slow), *(end for _, end, _ in slow)})
    return [
        (start, end, math.prod(speed for begin, until, speed in slow if begin <= start < until))
        for start, end in pairwise(edges)
    ]


def _done(spans: Sequence[Span], start: float, work: float) -> float:
    """When work that starts then is done at those speeds; infinite if never."""
    for first, end, speed in spans:
        if end <= start or not speed:
            continue
        begin = max(first, start)
        if speed * (end - begin) >= work:
            return begin + work / speed
        work -= speed * (end - begin)
    return math.inf
