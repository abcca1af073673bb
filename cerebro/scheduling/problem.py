"""`Problem`: models, partitions, workers, replicas and sub-epoch times, the input of planner, solvers and simulations.

`controller.planning` builds one from a run's state.

A *sub-epoch* is one model on one partition in one epoch. It runs on a worker with a replica of the partition,
by one of the model's parallel plans there (GPUs, technique, seconds). The papers' problems are special cases. In
the open shop of Model Hopper Parallelism (seed paper, section 5.1) each worker has one GPU and each partition
one parallel plan and one holder. In the thesis (section 4.3) workers, called nodes, have several GPUs and one
partition each.

Indices are positions: model `m`, partition `p`, worker `w`. Sets of partitions are bit masks, because
decisions cover 100,000 (model, partition) pairs. Pure; independent of experiments, tasks and clocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from cerebro.errors import InstanceError


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedPlan:
    """A parallel plan of a model's sub-epochs, with estimated times.

    Only what scheduling needs of `cerebro.contract.parallel_plans.ParallelPlan`: the planner process gets
    these five values for each model and worker.

    Attributes:
        gpus: GPUs of each worker, all occupied from start to end.
        seconds: seconds for a partition of size 1; for a gang, for partitions with sizes that add up to 1.
        fixed: seconds of each sub-epoch for any size: loading and saving the model, starting processes.
        technique: name of the technique.
        workers: number of workers. Several are a gang: one worker with a replica for each partition of a set.
    """

    seconds: float
    gpus: int = 1
    technique: str = ""
    fixed: float = 0.0
    workers: int = 1

    def sub_epoch_s(self, size: float) -> float:
        """Return the seconds of a sub-epoch for this partition size, or sum of sizes."""
        return self.seconds * size + self.fixed


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A scheduling problem. Validated at creation; immutable.

    Attributes:
        models, workers: names, for messages.
        gpus: GPUs of each worker.
        parallel_plans: ``parallel_plans[m][w]``, plans of model `m` on worker `w`; an empty tuple if it does
            not fit.
        holders: ``holders[p]``, workers with a replica of partition `p`: the availability map (seed paper,
            section 5.5).
        sizes: relative sizes of the partitions: a sub-epoch takes ``plan.seconds * sizes[p] +
            plan.fixed``.
        epochs: number of epochs. Each model trains once on every partition in each; its epochs are in
            sequence, without a barrier between models.
        remaining_partitions: ``remaining_partitions[m]``, mask of the partitions that model `m` still needs in
            its first epoch; 0 if it needs none. Default: all.
        model_ready: seconds from now until a model is idle.
        gpu_ready: ``gpu_ready[w]``, seconds until each GPU of the worker is free, ascending; GPUs are
            interchangeable.
        gangs: ``gangs[m]``, gangs of model `m`, on any workers with enough GPUs. Bounds and
            validator support them; planner, policies and solvers do not.

    Raises:
        InstanceError: sizes disagree, a time is not positive and finite, an axis has length 0, a partition
            has no holder, a model fits on no holder of a partition, a parallel plan needs more GPUs than its
            worker has, or a gang has too few or too many workers.
    """

    models: tuple[str, ...]
    workers: tuple[str, ...]
    gpus: tuple[int, ...]
    parallel_plans: tuple[tuple[tuple[TimedPlan, ...], ...], ...]
    holders: tuple[tuple[int, ...], ...]
    sizes: tuple[float, ...] = ()
    epochs: int = 1
    remaining_partitions: tuple[int, ...] = ()
    model_ready: tuple[float, ...] = ()
    gpu_ready: tuple[tuple[float, ...], ...] = ()
    gangs: tuple[tuple[TimedPlan, ...], ...] = ()

    def __post_init__(self) -> None:
        defaults = {
            "sizes": (1.0,) * len(self.holders),
            "remaining_partitions": (self.all_partitions,) * len(self.models),
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
        """Number of rows of the papers' matrix."""
        return len(self.models)

    @property
    def num_workers(self) -> int:
        """Number of workers (nodes in the thesis)."""
        return len(self.workers)

    @property
    def num_partitions(self) -> int:
        """Number of partitions of the training data."""
        return len(self.holders)

    @property
    def all_partitions(self) -> int:
        """Mask of all partitions."""
        return (1 << len(self.holders)) - 1

    @property
    def num_sub_epochs(self) -> int:
        """Number of sub-epochs to run in all epochs."""
        first = sum(mask.bit_count() for mask in self.remaining_partitions)
        return first + (self.epochs - 1) * self.num_models * self.num_partitions

    @property
    def is_single(self) -> bool:
        """True if each model has at most one parallel plan on each worker.

        Then only the order is open.
        """
        return all(len(parallel_plans) <= 1 for row in self.parallel_plans for parallel_plans in row)

    def seconds(self, model: int, partition: int, worker: int, plan_index: int = 0) -> float:
        """Return the seconds of a sub-epoch."""
        return self.parallel_plans[model][worker][plan_index].sub_epoch_s(self.sizes[partition])

    @property
    def mean_size(self) -> float:
        """Mean size of the partitions, to compare parallel plans independently of a partition."""
        return sum(self.sizes) / len(self.sizes)

    def ready(self, worker: int, gpus: int = 1) -> float:
        """Return the seconds until `gpus` GPUs of a worker are free for the first time."""
        return self.gpu_ready[worker][gpus - 1]

    def places(self, model: int, partition: int) -> tuple[int, ...]:
        """Return the workers with the partition and a parallel plan for the model."""
        return tuple(w for w in self.holders[partition] if self.parallel_plans[model][w])

    def twins(self) -> list[list[int]]:
        """Group models that differ only in name."""
        alike: dict[object, list[int]] = {}
        for m in range(self.num_models):
            alike.setdefault(
                (self.parallel_plans[m], self.remaining_partitions[m], self.model_ready[m]), []
            ).append(m)
        return list(alike.values())

    def with_parallel_plans(self, chosen: Sequence[Sequence[int]]) -> Problem:
        """Return the problem with ``chosen[m][w]`` as the only parallel plan of model `m` on worker `w`."""
        chosen_plans = tuple(
            tuple(
                (parallel_plans[chosen[m][w]],) if parallel_plans else ()
                for w, parallel_plans in enumerate(row)
            )
            for m, row in enumerate(self.parallel_plans)
        )
        return replace(self, parallel_plans=chosen_plans)


def undominated(problem: Problem) -> Problem:
    """Remove dominated parallel plans.

    A dominated parallel plan needs no fewer GPUs and no less time than another of the same model and worker. Some
    shortest schedule does without them.
    """
    plans = tuple(
        tuple(_undominated(parallel_plans) for parallel_plans in row) for row in problem.parallel_plans
    )
    return problem if plans == problem.parallel_plans else replace(problem, parallel_plans=plans)


def _undominated(parallel_plans: tuple[TimedPlan, ...]) -> tuple[TimedPlan, ...]:
    if len(parallel_plans) < 2:
        return parallel_plans
    undominated_plans: list[TimedPlan] = []
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
            other.seconds <= parallel_plan.seconds and other.fixed <= parallel_plan.fixed
            for other in undominated_plans
        ):
            undominated_plans.append(parallel_plan)
    return tuple(undominated_plans)


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
    for m, row in enumerate(problem.parallel_plans):
        for w, parallel_plans in enumerate(row):
            for parallel_plan in parallel_plans:
                _check_parallel_plan(problem, m, w, parallel_plan)
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
        ("parallel_plans", len(problem.parallel_plans), problem.num_models),
        ("sizes", len(problem.sizes), problem.num_partitions),
        ("remaining_partitions", len(problem.remaining_partitions), problem.num_models),
        ("model_ready", len(problem.model_ready), problem.num_models),
        ("gangs", len(problem.gangs), problem.num_models),
        ("gpu_ready", len(problem.gpu_ready), problem.num_workers),
        *(
            (f"gpu_ready of {name}", len(ready), count)
            for name, ready, count in zip(problem.workers, problem.gpu_ready, problem.gpus, strict=False)
        ),
        *(("a row of parallel plans", len(row), problem.num_workers) for row in problem.parallel_plans),
    ):
        if found != expected:
            raise InstanceError(f"{what} has {found} entries, expected {expected}")


def _check_positive(value: float, what: str) -> None:
    if not math.isfinite(value) or value <= 0:
        raise InstanceError(f"{what} is {value}, expected a finite number above 0")


def _check_parallel_plan(problem: Problem, model: int, worker: int, parallel_plan: TimedPlan) -> None:
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


def _check_gang(problem: Problem, model: int, gang: TimedPlan) -> None:
    where = f"a gang for model {problem.models[model]!r}"
    _check_positive(gang.seconds, f"the time of {where}")
    if not 0 <= gang.fixed < math.inf:
        raise InstanceError(
            f"the fixed time of {where} is {gang.fixed}, expected a finite number of at least 0"
        )
    if not 2 <= gang.workers <= min(problem.num_workers, problem.num_partitions):
        raise InstanceError(
            f"{where} has {gang.workers} workers, expected at least 2, and no more than there are workers "
            f"({problem.num_workers}) and partitions ({problem.num_partitions})"
        )
    able = sum(count >= gang.gpus for count in problem.gpus)
    if gang.gpus < 1 or able < gang.workers:
        raise InstanceError(
            f"{where} asks for {gang.gpus} GPUs of {gang.workers} workers, but {able} have so many"
        )


def filled_s(ready: Iterable[float], seconds: float) -> float:
    """Return when GPUs with these ready times have completed `seconds` GPU-seconds.

    Each GPU is busy from its ready time; GPUs that are ready too late contribute nothing.

    Args:
        ready: ready time of each GPU in seconds; at least one.
    """
    best, offset = math.inf, 0.0
    for count, at in enumerate(sorted(ready), start=1):
        offset += at
        best = min(best, (seconds + offset) / count)
    return best


def shared_s(seconds: Iterable[float]) -> float:
    """Return the seconds each holder spends per sub-epoch if all are busy equally long.

    Args:
        seconds: seconds of the sub-epoch on each holder; at least one.
    """
    return 1 / sum(1 / each for each in seconds)
