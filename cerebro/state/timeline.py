"""What ran where when in a fit run: its units and attempts as spans of time, as a chart's bars, as a schedule to judge.

Read off the log alone, so it is the same during a run, after it, and in a replay. Times are the store's clock in
seconds, or seconds since the start of the run's first unit where it says so. Pure.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from cerebro.errors import InstanceError
from cerebro.scheduling.gantt import Bar
from cerebro.scheduling.problem import Problem, Strategy
from cerebro.scheduling.schedule import Schedule, Unit
from cerebro.state.models import ModelState
from cerebro.state.runs import Run
from cerebro.state.tasks import Attempt, Task, TaskState


class TrainedUnit(NamedTuple):
    """A unit that is committed, or that runs and has not ended yet. Store's clock."""

    model: str
    epoch: int
    partition: int
    worker: str
    started: float
    ended: float
    is_running: bool = False

    @property
    def seconds(self) -> float:
        """How long it took, or runs."""
        return self.ended - self.started


class Busy(NamedTuple):
    """An attempt of a task of any kind that ran at a worker. Store's clock."""

    worker: str
    started: float
    ended: float

    def within(self, begin: float, end: float) -> float:
        """Seconds of it between two times."""
        return max(0.0, min(self.ended, end) - max(self.started, begin))


def origin(run: Run) -> float:
    """When the run's first unit started; infinite before."""
    first = math.inf
    for task in run.tasks.values():
        # They are in the order of their first assignment, and nothing starts before that.
        if not task.attempts or task.attempts[0].assigned >= first:
            break
        if task.key.kind == "train":
            first = min([first, *(attempt.started for attempt in task.attempts if _has_run(task, attempt))])
    return first


def committed(run: Run, epoch: int | None = None) -> Iterator[TrainedUnit]:
    """Committed units, model by model in the order of training; only those up to `epoch` if one is given."""
    for model in run.models.values():
        for visit in model.visits[: (epoch or model.epochs) * len(model.partitions)]:
            yield TrainedUnit(
                model.id, visit.epoch, visit.partition, visit.worker, visit.started, visit.ended
            )


def running(run: Run, now: float) -> Iterator[TrainedUnit]:
    """Units that run, up to `now` (a clock that is a little behind the store's is read as the store's)."""
    for task in run.open.values():
        key, attempt = task.key, task.attempts[-1]
        if key.kind != "train" or task.state is not TaskState.RUNNING:
            continue
        assert key.model is not None
        assert key.epoch is not None
        assert key.partition is not None
        end = max(now, attempt.started)
        yield TrainedUnit(
            key.model, key.epoch, key.partition, attempt.worker, attempt.started, end, is_running=True
        )


def busy(run: Run, end: float) -> Iterator[Busy]:
    """Every attempt that ran, whatever came of it; those that still do up to `end`."""
    for task in run.tasks.values():
        for attempt in task.attempts:
            if _has_run(task, attempt):
                yield Busy(attempt.worker, attempt.started, attempt.ended or end)


def bars(run: Run, now: float) -> tuple[Bar, ...]:
    """Units for a Gantt chart, in the order of their start: seconds since the start of the run's first unit.

    Validation runs in the gaps; it is no unit and is not drawn.
    """
    zero = origin(run)
    units = [*committed(run), *running(run, now)]
    return tuple(
        Bar(
            worker=unit.worker,
            model=unit.model,
            partition=unit.partition,
            start=unit.started - zero,
            end=unit.ended - zero,
            epoch=unit.epoch,
            is_running=unit.is_running,
        )
        for unit in sorted(units, key=lambda unit: unit.started)
    )


def schedule_of(run: Run) -> tuple[Problem, Schedule]:
    """The visits of a fit run, for `cerebro.scheduling.validator.validate` with ``actual=True``.

    Seconds since the start of the run's first unit. The problem's times are means of those measured; as holders of a
    partition count the workers that served it (the fold has checked that they held it). A model that was given up is
    left out, because nothing more of it is due.

    Raises:
        InstanceError: nothing is committed yet.
    """
    models = [model for model in run.models.values() if model.state is not ModelState.FAILED]
    index = {model.id: position for position, model in enumerate(models)}
    visits = [unit for unit in committed(run) if unit.model in index]
    if not visits:
        raise InstanceError(
            f"no unit of {run.id} is committed yet, so it has no schedule: wait for the first"
        )
    workers = {name: position for position, name in enumerate(sorted({unit.worker for unit in visits}))}
    partitions = {number: position for position, number in enumerate(models[0].partitions)}
    zero = origin(run)
    units = [
        Unit(
            model=index[visit.model],
            partition=partitions[visit.partition],
            worker=workers[visit.worker],
            start=visit.started - zero,
            end=visit.ended - zero,
            epoch=visit.epoch,
        )
        for visit in visits
    ]
    served: dict[int, set[int]] = {position: set() for position in partitions.values()}
    for unit in units:
        served[unit.partition].add(unit.worker)
    problem = Problem(
        models=tuple(index),
        workers=tuple(workers),
        gpus=(1,) * len(workers),
        strategies=_times(units, len(models), len(workers)),
        holders=tuple(tuple(sorted(found)) or tuple(workers.values()) for found in served.values()),
        epochs=models[0].epochs,
    )
    return problem, Schedule.of(units)


def _times(units: list[Unit], models: int, workers: int) -> tuple[tuple[tuple[Strategy, ...], ...], ...]:
    """Mean time of each model on each worker; where it has not been, its mean elsewhere, or that of all units."""
    measured: dict[tuple[int | None, int | None], list[float]] = defaultdict(list)
    for unit in units:
        for pair in ((unit.model, unit.worker), (unit.model, None), (None, None)):
            measured[pair].append(unit.end - unit.start)

    def mean(model: int, worker: int) -> float:
        found = measured.get((model, worker)) or measured.get((model, None)) or measured[None, None]
        # Not 0, should start and commit fall into one tick of the store's clock.
        return max(sum(found) / len(found), 1e-9)

    return tuple(tuple((Strategy(seconds=mean(m, w)),) for w in range(workers)) for m in range(models))


def _has_run(task: Task, attempt: Attempt) -> bool:
    """Whether it ever started. A start at 0, where virtual time begins, is told from none by what came of it."""
    is_running = task.state is TaskState.RUNNING and attempt is task.attempts[-1]
    return attempt.started > 0 or is_running or attempt.outcome == "committed"
