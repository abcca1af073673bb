"""Time spans of a fit run's sub-epochs and attempts, and their schedule. Pure.

The log is the only source, so results are the same during the run, afterwards and in a replay. Times are seconds of the
store's clock, or since the first sub-epoch's start where noted.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from cerebro.contract.tasks.gangs import Member
from cerebro.errors import InstanceError
from cerebro.scheduling.problem import Problem, TimedPlan
from cerebro.scheduling.schedule import Placement, Schedule
from cerebro.state.models.completed_sub_epoch import CompletedSubEpoch
from cerebro.state.runs.run import Run
from cerebro.state.tasks.keys import TaskKey
from cerebro.state.tasks.task import Attempt, TaskState


class TrainedSubEpoch(NamedTuple):
    """A committed or running sub-epoch, in the store's clock.

    Unlike `Attempt`, without assignment and outcome: reports create one for each sub-epoch of a long run. A committed
    one starts with its own work; a running one with its attempt, since its process start is not known yet.
    """

    model: str
    epoch: int
    partition: int
    worker: str
    started: float
    ended: float
    is_running: bool = False
    devices: tuple[int, ...] = (0,)
    other_members: tuple[Member, ...] = ()
    """The other workers of a gang; `worker` reads `partition`."""
    sharing: int = 1
    """Number of attempts that share the devices."""

    @classmethod
    def of(cls, model: str, sub_epoch: CompletedSubEpoch) -> TrainedSubEpoch:
        """Return the span of a committed sub-epoch."""
        return cls(
            model,
            sub_epoch.epoch,
            sub_epoch.partition,
            sub_epoch.worker,
            sub_epoch.begun,
            sub_epoch.ended,
            devices=sub_epoch.devices,
            other_members=sub_epoch.other_members,
            sharing=sub_epoch.group.size,
        )

    @property
    def seconds(self) -> float:
        """Duration until now or the end."""
        return self.ended - self.started

    @property
    def device_s(self) -> float:
        """Its share of `seconds` on each of its devices."""
        return self.seconds / self.sharing

    @property
    def places(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """(worker, its devices) of the sub-epoch."""
        return (
            (self.worker, self.devices),
            *((member.worker, member.devices) for member in self.other_members),
        )


class Busy(NamedTuple):
    """Time that an attempt of any task, or a part of it, occupied devices of one worker, in the store's clock."""

    worker: str
    started: float
    ended: float
    devices: tuple[int, ...] = (0,)
    sharing: int = 1
    """Number of attempts that share the devices; each counts for its share of the time."""

    @property
    def num_devices(self) -> float:
        """Its share of the devices."""
        return len(self.devices) / self.sharing


@dataclass(slots=True)
class TaskAttempt:
    """One attempt at a task, with what it committed.

    Attributes:
        sub_epoch: the completed sub-epoch, unless its checkpoint was lost.
        is_guessed: True if its assignment is unknown: `started` is computed, the devices are unknown.
    """

    key: TaskKey
    attempt: Attempt
    sub_epoch: CompletedSubEpoch | None = None
    is_guessed: bool = False

    def overlaps(self, since: float, until: float) -> bool:
        """True if the attempt was open at some time of the range."""
        began = self.attempt.started or self.attempt.assigned
        return began <= until and (not self.attempt.outcome or self.attempt.ended >= since)


def task_attempts(run: Run, model: str = "") -> Iterator[TaskAttempt]:
    """Yield every attempt of a run or model, without compacted sub-epochs.

    Only attempts at one task are in order. The attempt of a completed sub-epoch comes with its record; its assignment
    time is known only for a second or later attempt.
    """
    for task in run.tasks.by_key.values():
        if model in ("", task.key.model):
            is_sub_epoch_done = task.state is TaskState.COMMITTED and task.key.kind == "train"
            for attempt in task.attempts[:-1] if is_sub_epoch_done else task.attempts:
                yield TaskAttempt(task.key, attempt)
    for name in (model,) if model else run.models:
        for sub_epoch in run.models[name].kept_sub_epochs if name in run.models else ():
            key = sub_epoch.key(run.id, name)
            known = run.tasks.by_key.get(str(key))
            yield TaskAttempt(
                key, known.attempts[-1] if known is not None else sub_epoch.as_attempt(), sub_epoch
            )


def committed(run: Run) -> Iterator[TrainedSubEpoch]:
    """Yield committed sub-epochs by model in the order of training, without compacted ones."""
    for model in run.models.values():
        for sub_epoch in model.kept_sub_epochs:
            yield TrainedSubEpoch.of(model.id, sub_epoch)


def running(run: Run, now: float) -> Iterator[TrainedSubEpoch]:
    """Yield running sub-epochs until `now`, which may lag behind the store's clock."""
    for task in run.tasks.open.values():
        key, attempt = task.key, task.attempts[-1]
        if key.kind != "train" or task.state is not TaskState.RUNNING:
            continue
        assert key.model is not None
        assert key.epoch is not None
        assert key.partition is not None
        end = max(now, attempt.started)
        yield TrainedSubEpoch(
            key.model,
            key.epoch,
            key.partition,
            attempt.worker,
            attempt.started,
            end,
            is_running=True,
            devices=attempt.devices,
            other_members=attempt.other_members,
            sharing=attempt.num_sharing,
        )


def busy(run: Run, end: float, *, since: float = -math.inf) -> Iterator[Busy]:
    """Yield every attempt that ran, open ones up to `end`; sub-epochs only if they ended after `since`."""
    yield from busy_without_sub_epochs(run, end)
    for model in run.models.values():
        for sub_epoch in reversed(model.kept_sub_epochs):
            if sub_epoch.ended <= since:
                break
            for worker, devices in sub_epoch.places:
                yield Busy(worker, sub_epoch.started, sub_epoch.ended, devices, sub_epoch.group.size)


def busy_without_sub_epochs(run: Run, end: float) -> Iterator[Busy]:
    """Yield `busy` without the sub-epochs."""
    for attempt in _uncommitted(run):
        ended = attempt.ended if attempt.outcome else end
        for worker, devices in attempt.places:
            yield Busy(worker, attempt.started, ended, devices, attempt.num_sharing)


def lost(run: Run) -> Iterator[Busy]:
    """Yield uncommitted attempts at sub-epochs, without process start.

    Their work was repeated, except for the part in a savepoint."""
    for task in run.tasks.by_key.values():
        if task.key.kind != "train":
            continue
        for attempt in task.attempts[:-1] if task.state is TaskState.COMMITTED else task.attempts:
            if attempt.has_run and attempt.outcome:
                began = min(attempt.started + attempt.start_s, attempt.ended)
                for worker, devices in attempt.places:
                    yield Busy(worker, began, attempt.ended, devices, attempt.num_sharing)


def starts(run: Run) -> Iterator[Busy]:
    """Yield the process starts (with imports) of committed tasks."""
    yield from (Busy(*start[:3], sharing=start.sharing) for start in run.device_time.starts)
    for attempt in _uncommitted(run):
        if attempt.start_s:
            for worker, _ in attempt.places:
                end = attempt.started + attempt.start_s
                yield Busy(worker, attempt.started, end, sharing=attempt.num_sharing)


def _uncommitted(run: Run) -> Iterator[Attempt]:
    """Attempts that ran and completed no sub-epoch."""
    for task in run.tasks.by_key.values():
        is_sub_epoch_done = task.state is TaskState.COMMITTED and task.key.kind == "train"
        for attempt in task.attempts[:-1] if is_sub_epoch_done else task.attempts:
            if attempt.has_run:
                yield attempt


def schedule_of(run: Run, devices: Mapping[str, int] | None = None) -> tuple[Problem, Schedule]:
    """Return the sub-epochs of a fit run for `cerebro.scheduling.validator.validate` with ``actual=True``.

    Times are seconds since the first sub-epoch began its work. The problem has mean measured times; the holders of a
    partition are the workers that served it (the fold has checked them). Failed and stopped models are omitted.

    Args:
        devices: worker -> number of devices, if known; the default is the number in use.

    Raises:
        InstanceError: nothing is committed, sub-epochs are compacted, or models differ in epochs (a problem has one
            number).
    """
    models = [model for model in run.models.values() if not model.is_cut_short]
    if any(model.lineage.sub_epochs or model.epochs != models[0].epochs for model in models):
        raise InstanceError(
            f"the models of {run.id} train for different numbers of epochs or continue from others, so {run.id} has no "
            "single schedule. `result.sub_epochs()` lists every sub-epoch; `cerebro status` shows the makespan"
        )
    if run.fit_request.folds is not None:
        raise InstanceError(
            f"the models of {run.id} train on different partitions, so {run.id} has no single schedule. "
            "`result.sub_epochs()` lists every sub-epoch; `cerebro status` shows the makespan"
        )
    index = {model.id: position for position, model in enumerate(models)}
    if run.compaction.until:
        raise InstanceError(
            f"older sub-epochs of {run.id} are compacted, so the state has no schedule of all of them. "
            "`result.sub_epochs()` reads them from the log; `cerebro status` shows makespan and idle time"
        )
    completed_sub_epochs = [sub_epoch for sub_epoch in committed(run) if sub_epoch.model in index]
    if any(sub_epoch.sharing > 1 for sub_epoch in completed_sub_epochs):
        raise InstanceError(
            f"models of {run.id} trained in fused groups, and a schedule has one sub-epoch on each device. "
            "`result.sub_epochs()` lists every sub-epoch; `cerebro status` shows makespan and idle time"
        )
    if not completed_sub_epochs:
        raise InstanceError(
            f"no sub-epoch of {run.id} is committed yet, so there is no schedule: wait for the first sub-epoch"
        )
    names = {name for sub_epoch in completed_sub_epochs for name, _ in sub_epoch.places}
    workers = {name: position for position, name in enumerate(sorted(names))}
    partitions = {number: position for position, number in enumerate(models[0].partitions)}
    zero = run.zero
    sub_epochs = [
        Placement(
            model=index[completed.model],
            partition=partitions[completed.partition],
            worker=workers[completed.worker],
            start=completed.started - zero,
            end=completed.ended - zero,
            epoch=completed.epoch,
            gpus=max(1, len(completed.devices)),
            other_members=tuple(
                (partitions[m.partition], workers[m.worker]) for m in completed.other_members
            ),
        )
        for completed in completed_sub_epochs
    ]
    used = dict.fromkeys(workers, 1) | dict(devices or {})
    for name, taken in (place for completed in completed_sub_epochs for place in completed.places):
        used[name] = max(used[name], *(device + 1 for device in taken))
    served: dict[int, set[int]] = {position: set() for position in partitions.values()}
    for partition, worker in (place for sub_epoch in sub_epochs for place in sub_epoch.places):
        served[partition].add(worker)
    problem = Problem(
        models=tuple(index),
        workers=tuple(workers),
        gpus=tuple(used[name] for name in workers),
        parallel_plans=_times(sub_epochs, len(models), len(workers)),
        holders=tuple(tuple(sorted(found)) or tuple(workers.values()) for found in served.values()),
        epochs=models[0].epochs,
        gangs=_gangs(sub_epochs, len(models))
        if any(sub_epoch.other_members for sub_epoch in sub_epochs)
        else (),
    )
    return problem, Schedule.of(sub_epochs)


def _gangs(sub_epochs: list[Placement], models: int) -> tuple[tuple[TimedPlan, ...], ...]:
    """Mean time per model, number of workers and GPUs per worker."""
    measured: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for sub_epoch in sub_epochs:
        if sub_epoch.other_members:
            workers = len(sub_epoch.places)
            measured[sub_epoch.model, workers, sub_epoch.gpus].append(
                (sub_epoch.end - sub_epoch.start) / workers
            )
    found: list[list[TimedPlan]] = [[] for _ in range(models)]
    for (model, workers, gpus), times in measured.items():
        found[model].append(TimedPlan(workers=workers, gpus=gpus, seconds=max(sum(times) / len(times), 1e-9)))
    return tuple(map(tuple, found))


def _times(
    sub_epochs: list[Placement], models: int, workers: int
) -> tuple[tuple[tuple[TimedPlan, ...], ...], ...]:
    """Mean time per model and worker; else the model's mean, else the overall mean."""
    measured: dict[tuple[int | None, int | None], list[float]] = defaultdict(list)
    for sub_epoch in sub_epochs:
        for pair in ((sub_epoch.model, sub_epoch.worker), (sub_epoch.model, None), (None, None)):
            measured[pair].append(sub_epoch.end - sub_epoch.start)

    def mean(model: int, worker: int) -> float:
        found = measured.get((model, worker)) or measured.get((model, None)) or measured[None, None]
        # Positive, even if start and commit share a tick of the store's clock.
        return max(sum(found) / len(found), 1e-9)

    return tuple(tuple((TimedPlan(seconds=mean(m, w)),) for w in range(workers)) for m in range(models))
