"""The scheduling problem: models x partitions x workers, who holds what, and how long sub-epochs take.

A *sub-epoch* is one model on one partition in one epoch. It runs on a worker that holds the partition, by one of
the strategies that fit the model there (so many GPUs, a technique, so many seconds). The papers' problems are special
cases: the open shop of Model Hopper Parallelism (seed paper, section 5.1) has one GPU per worker, one strategy and one
holder per partition; the thesis's (section 4.3) has several GPUs per worker, which it calls a node, and one partition
on each.

Indices are positions: model `m`, partition `p`, worker `w`. Sets of partitions are bit masks, because decisions are
made over a hundred thousand (model, partition) pairs. Pure; knows nothing of experiments, tasks or time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cerebro.errors import InstanceError


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """A way to run a sub-epoch of a model on a worker.

    Attributes:
        gpus: how many of the worker's GPUs it takes, all from start to end.
        seconds: for a partition of size 1.
        fixed: seconds of each sub-epoch, whatever its size: to load and save the model, to start its processes.
        technique: name of the parallelism.
    """

    seconds: float
    gpus: int = 1
    technique: str = ""
    fixed: float = 0.0

    def sub_epoch_s(self, size: float) -> float:
        """How long a sub-epoch takes on a partition of that size."""
        return self.seconds * size + self.fixed


@dataclass(frozen=True, kw_only=True, slots=True)
class GangStrategy:
    """A way to run a sub-epoch on a set of partitions: on as many workers as there are partitions, each holds one of
    them.

    Attributes:
        members: workers, and partitions of the set.
        seconds: for partitions whose sizes add up to 1.
        gpus: of each worker, all from start to end.
        fixed: as in `Strategy`.
        technique: name of the parallelism.
    """

    members: int
    seconds: float
    gpus: int = 1
    fixed: float = 0.0
    technique: str = ""

    def sub_epoch_s(self, size: float) -> float:
        """How long a sub-epoch takes on partitions whose sizes add up to that."""
        return self.seconds * size + self.fixed


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is to be scheduled. Checked when made; immutable.

    Attributes:
        models, workers: names, for people.
        gpus: of each worker.
        strategies: ``strategies[m][w]``, the ways model `m` can run on worker `w`; empty if it does not fit there.
        holders: ``holders[p]``, the workers that hold partition `p`: the availability map (seed paper, section 5.5).
        sizes: of the partitions, relative: a sub-epoch takes ``strategy.seconds * sizes[p] + strategy.fixed``.
        epochs: each model visits every partition once in each; its epochs follow each other, without a barrier
            between models.
        left: ``left[m]``, mask of the partitions model `m` has yet to visit in its first epoch. A problem that is half
            done has less than all; a model that needs no sub-epoch in it has 0.
        model_ready: seconds from now before which a model is occupied.
        gpu_ready: ``gpu_ready[w]``, the same of each of the worker's GPUs, ascending: which is which does not matter.
        gangs: ``gangs[m]``, the ways in which several workers can train model `m` together, on any of them that have
            the GPUs. Bounds and validator know them; planner, policies and solvers choose none.

    Raises:
        InstanceError: sizes disagree, a time is not positive and finite, an axis is empty, a partition is held by
            nobody, a model fits nowhere where one of its partitions lies, a strategy wants more GPUs than its worker
            has, a gang is no several workers.
    """

    models: tuple[str, ...]
    workers: tuple[str, ...]
    gpus: tuple[int, ...]
    strategies: tuple[tuple[tuple[Strategy, ...], ...], ...]
    holders: tuple[tuple[int, ...], ...]
    sizes: tuple[float, ...] = ()
    epochs: int = 1
    left: tuple[int, ...] = ()
    model_ready: tuple[float, ...] = ()
    gpu_ready: tuple[tuple[float, ...], ...] = ()
    gangs: tuple[tuple[GangStrategy, ...], ...] = ()

    def __post_init__(self) -> None:
        defaults = {
            "sizes": (1.0,) * len(self.holders),
            "left": (self.all_partitions,) * len(self.models),
            "model_ready": (0.0,) * len(self.models),
            "gpu_ready": tuple((0.0,) * count for count in self.gpus),
            "gangs": ((),) * len(self.models),
        }
        for name, value in defaults.items():
            if not getattr(self, name):
                object.__setattr__(self, name, value)
        object.__setattr__(self, "gpu_ready", tuple(tuple(sorted(ready)) for ready in self.gpu_ready))
        _check(self)

    @property
    def num_models(self) -> int:
        """Rows of the papers' matrix."""
        return len(self.models)

    @property
    def num_workers(self) -> int:
        """Nodes of the thesis, workers of the paper."""
        return len(self.workers)

    @property
    def num_partitions(self) -> int:
        """Partitions of the training data."""
        return len(self.holders)

    @property
    def all_partitions(self) -> int:
        """The mask of every partition."""
        return (1 << len(self.holders)) - 1

    @property
    def num_sub_epochs(self) -> int:
        """Sub-epochs to run, over all epochs."""
        first = sum(mask.bit_count() for mask in self.left)
        return first + (self.epochs - 1) * self.num_models * self.num_partitions

    @property
    def is_open_shop(self) -> bool:
        """Whether it is the paper's plain case: one GPU per worker, one strategy, one holder per partition and one
        partition per worker, nothing done yet, one epoch; no gangs."""
        return (
            self.is_single
            and not any(self.gangs)
            and self.epochs == 1
            and all(count == 1 for count in self.gpus)
            and sorted(held for (held, *more) in self.holders if not more) == list(range(self.num_workers))
            and all(mask == self.all_partitions for mask in self.left)
            and not any(self.model_ready)
            and not any(map(any, self.gpu_ready))
        )

    @property
    def is_single(self) -> bool:
        """Whether each model has at most one strategy on each worker: nothing is left to choose but the order."""
        return all(len(parallel_plans) <= 1 for row in self.strategies for parallel_plans in row)

    def seconds(self, model: int, partition: int, worker: int, strategy: int = 0) -> float:
        """How long a sub-epoch takes."""
        return self.strategies[model][worker][strategy].sub_epoch_s(self.sizes[partition])

    @property
    def mean_size(self) -> float:
        """Of the partitions: where ways are compared before it is known for which."""
        return sum(self.sizes) / len(self.sizes)

    def ready(self, worker: int, gpus: int = 1) -> float:
        """When so many GPUs of a worker are free for the first time: nothing that takes them starts sooner."""
        return self.gpu_ready[worker][gpus - 1]

    def places(self, model: int, partition: int) -> tuple[int, ...]:
        """Workers that hold the partition and have a strategy for the model."""
        return tuple(w for w in self.holders[partition] if self.strategies[model][w])

    def twins(self) -> list[list[int]]:
        """The models, those together that are alike in all but their names."""
        alike: dict[object, list[int]] = {}
        for m in range(self.num_models):
            alike.setdefault((self.strategies[m], self.left[m], self.model_ready[m]), []).append(m)
        return list(alike.values())

    def with_strategies(self, chosen: Sequence[Sequence[int]]) -> Problem:
        """The same problem with strategy ``chosen[m][w]`` the only one of model `m` on worker `w`."""
        kept = tuple(
            tuple(
                (parallel_plans[chosen[m][w]],) if parallel_plans else ()
                for w, parallel_plans in enumerate(row)
            )
            for m, row in enumerate(self.strategies)
        )
        return replace(self, strategies=kept)


def open_shop(
    times: Sequence[Sequence[float]],
    available: Sequence[Sequence[int]] | None = None,
    *,
    epochs: int = 1,
    sizes: Sequence[float] = (),
) -> Problem:
    """A problem of workers that run one sub-epoch at a time.

    Args:
        times: ``times[i][j]``, seconds of a sub-epoch of model `i` on worker `j` (T of the seed paper, table 3).
        available: ``available[p]``, workers that hold partition `p`; partition `j` on worker `j` if left out.
        epochs: how often every model visits every partition.
        sizes: of the partitions, relative; all 1 if left out.

    Raises:
        InstanceError: see `Problem`.
    """
    width = len(times[0]) if times else 0
    for number, row in enumerate(times):
        if len(row) != width:
            raise InstanceError(
                f"times[{number}] has {len(row)} entries, but times[0] has {width}: give one for each worker"
            )
    holders = tuple((j,) for j in range(width)) if available is None else tuple(map(tuple, available))
    return Problem(
        models=tuple(f"m{number}" for number in range(len(times))),
        workers=tuple(f"worker-{number}" for number in range(width)),
        gpus=(1,) * width,
        strategies=tuple(tuple((Strategy(seconds=seconds),) for seconds in row) for row in times),
        holders=holders,
        sizes=tuple(sizes),
        epochs=epochs,
    )


def multi_gpu(
    nodes: Sequence[int], runtimes: Mapping[str, Mapping[int, Mapping[int, float]]], *, epochs: int = 1
) -> Problem:
    """The thesis's problem (section 4.3): each model visits each node once, on a number of its GPUs.

    Args:
        nodes: GPUs of each node (GPU_n of the thesis, table 4.1).
        runtimes: model -> node -> number of GPUs -> seconds (G and R of table 4.1).
        epochs: how often every model visits every node.

    Raises:
        InstanceError: see `Problem`; or a node that does not exist.
    """
    for model, places in runtimes.items():
        for node in places:
            if not 0 <= node < len(nodes):
                raise InstanceError(
                    f"model {model!r} has runtimes for node {node}, expected a node from 0 to {len(nodes) - 1}"
                )
    return Problem(
        models=tuple(runtimes),
        workers=tuple(f"node-{number}" for number in range(len(nodes))),
        gpus=tuple(nodes),
        strategies=tuple(
            tuple(
                tuple(Strategy(gpus=gpus, seconds=s) for gpus, s in sorted(places.get(node, {}).items()))
                for node in range(len(nodes))
            )
            for places in runtimes.values()
        ),
        holders=tuple((node,) for node in range(len(nodes))),
        epochs=epochs,
    )


def undominated(problem: Problem) -> Problem:
    """The problem without the strategies that take no fewer GPUs and no less time than another one of the same model
    and worker, whatever the partition: some shortest schedule uses none of them."""
    kept = tuple(tuple(_undominated(parallel_plans) for parallel_plans in row) for row in problem.strategies)
    return problem if kept == problem.strategies else replace(problem, strategies=kept)


def _undominated(parallel_plans: tuple[Strategy, ...]) -> tuple[Strategy, ...]:
    if len(parallel_plans) < 2:
        return parallel_plans
    kept: list[Strategy] = []
    for parallel_plan in sorted(
        parallel_plans,
        key=lambda parallel_plan: (
            parallel_plan.gpus,
            parallel_plan.seconds,
            parallel_plan.fixed,
            parallel_plan.technique,
        ),
    ):
        if not any(
            other.seconds <= parallel_plan.seconds and other.fixed <= parallel_plan.fixed for other in kept
        ):
            kept.append(parallel_plan)
    return tuple(kept)


def _check(problem: Problem) -> None:
    for what, axis in (
        ("models", problem.models),
        ("workers", problem.workers),
        ("partitions", problem.holders),
    ):
        if not axis:
            raise InstanceError(f"there are no {what}: give at least one")
    if problem.epochs < 1:
        raise InstanceError(f"epochs is {problem.epochs}, expected at least 1")
    _check_lengths(problem)
    for name, count in zip(problem.workers, problem.gpus, strict=True):
        if count < 1:
            raise InstanceError(f"{name} has {count} GPUs, expected at least 1")
    for number, size in enumerate(problem.sizes):
        _check_positive(size, f"the size of partition {number}")
    for m, row in enumerate(problem.strategies):
        for w, parallel_plans in enumerate(row):
            for parallel_plan in parallel_plans:
                _check_strategy(problem, m, w, parallel_plan)
    for m, gangs in enumerate(problem.gangs):
        for gang in gangs:
            _check_gang(problem, m, gang)
    _check_holders(problem)


def _check_holders(problem: Problem) -> None:
    for number, held_by in enumerate(problem.holders):
        if not held_by:
            raise InstanceError(f"partition {number} is held by no worker: name a worker that holds it")
        if unknown := [w for w in held_by if not 0 <= w < problem.num_workers]:
            raise InstanceError(
                f"partition {number} is held by worker {unknown[0]}, expected a worker from 0 to "
                f"{problem.num_workers - 1}"
            )
    for m, name in enumerate(problem.models):
        for p in range(problem.num_partitions):
            if not problem.places(m, p):
                held = ", ".join(problem.workers[w] for w in problem.holders[p])
                raise InstanceError(
                    f"model {name!r} fits on no worker that holds partition {p} ({held}): give it a runtime there, or "
                    "leave the model out"
                )


def _check_lengths(problem: Problem) -> None:
    for what, found, expected in (
        ("gpus", len(problem.gpus), problem.num_workers),
        ("strategies", len(problem.strategies), problem.num_models),
        ("sizes", len(problem.sizes), problem.num_partitions),
        ("left", len(problem.left), problem.num_models),
        ("model_ready", len(problem.model_ready), problem.num_models),
        ("gangs", len(problem.gangs), problem.num_models),
        ("gpu_ready", len(problem.gpu_ready), problem.num_workers),
        *(
            (f"gpu_ready of {name}", len(ready), count)
            for name, ready, count in zip(problem.workers, problem.gpu_ready, problem.gpus, strict=False)
        ),
        *(("a row of strategies", len(row), problem.num_workers) for row in problem.strategies),
    ):
        if found != expected:
            raise InstanceError(f"{what} has {found} entries, expected {expected}")


def _check_positive(value: float, what: str) -> None:
    if not math.isfinite(value) or value <= 0:
        raise InstanceError(f"{what} is {value}, expected a finite number above 0")


def _check_strategy(problem: Problem, model: int, worker: int, parallel_plan: Strategy) -> None:
    where = f"model {problem.models[model]!r} on {problem.workers[worker]}"
    _check_positive(parallel_plan.seconds, f"the time of {where}")
    if not 0 <= parallel_plan.fixed < math.inf:
        raise InstanceError(
            f"the fixed time of {where} is {parallel_plan.fixed}, expected a finite number of at least 0"
        )
    if not 1 <= parallel_plan.gpus <= problem.gpus[worker]:
        raise InstanceError(
            f"{where} asks for {parallel_plan.gpus} GPUs, but there are {problem.gpus[worker]}: ask for at least 1 "
            f"and at most "
            f"{problem.gpus[worker]}"
        )


def _check_gang(problem: Problem, model: int, gang: GangStrategy) -> None:
    where = f"a gang for model {problem.models[model]!r}"
    _check_positive(gang.seconds, f"the time of {where}")
    if not 0 <= gang.fixed < math.inf:
        raise InstanceError(
            f"the fixed time of {where} is {gang.fixed}, expected a finite number of at least 0"
        )
    if not 2 <= gang.members <= min(problem.num_workers, problem.num_partitions):
        raise InstanceError(
            f"{where} has {gang.members} members, expected at least 2, and no more than there are workers "
            f"({problem.num_workers}) and partitions ({problem.num_partitions})"
        )
    able = sum(count >= gang.gpus for count in problem.gpus)
    if gang.gpus < 1 or able < gang.members:
        raise InstanceError(
            f"{where} asks for {gang.gpus} GPUs of {gang.members} workers, but {able} have so many"
        )


def filled_s(ready: Iterable[float], seconds: float) -> float:
    """When GPUs that get ready one after the other have done so many GPU-seconds, if all of them are busy from then on;
    those that get ready later than that have done nothing.

    Args:
        ready: seconds at which each gets ready; at least one.
    """
    best, offset = math.inf, 0.0
    for count, at in enumerate(sorted(ready), start=1):
        offset += at
        best = min(best, (seconds + offset) / count)
    return best


def shared_s(seconds: Iterable[float]) -> float:
    """Seconds for which each of several holders is busy with one visit to a partition, if they share the visits so that
    all are busy equally long: a fast one does more of them.

    Args:
        seconds: of the sub-epoch on each holder; at least one.
    """
    return 1 / sum(1 / each for each in seconds)
