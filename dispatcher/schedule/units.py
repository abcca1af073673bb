"""Tasks and their attempts, newest first: units of training, and what else workers do for an experiment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Literal

from pydantic import Field

from cerebro.contract.base import Contract
from cerebro.contract.tasks import Failure
from cerebro.state import ExperimentState, Run, Task, TaskKey, TaskState, Visit, wording
from cerebro.state.tasks import Attempt
from dispatcher.pages.tables import Paged, page_of
from dispatcher.tabs.workers import device_count


class UnitQuery(Contract):
    """Which tasks: of a run (all runs if empty), a model, a worker; of a kind; in a state."""

    run: str = Field("", max_length=60)
    model: str = Field("", max_length=100)
    worker: str = Field("", max_length=60)
    kind: Literal[
        "", "etl", "train", "valid", "test", "predict", "inspect", "trial", "search", "fitting", "audit"
    ] = ""
    state: Literal["", "pending", "assigned", "running", "committed", "failed"] = ""
    page: int = Field(1, ge=1, le=1_000_000)
    size: int = Field(100, ge=1, le=500)


_Found = tuple[float, str, Task | None, str, Visit | None]
"""When it began, its run, and the task; or of a unit that was committed at its first attempt the model and visit: of
those only the visit is kept. Plain, because there is one for each unit of a long run."""


@dataclass(frozen=True, kw_only=True)
class AttemptRow:
    """One attempt; times are seconds since the epoch, None while unknown. `outcome` is empty while it is open. So is
    `way` where it runs on one device as user code is written. `on`: `devices` in words, empty of a worker that has one.
    `workers` are all that do it, of which `worker` leads.
    """

    number: int
    worker: str
    workers: tuple[str, ...] = ()
    assigned: float
    started: float | None
    ended: float | None
    outcome: str
    devices: tuple[int, ...] = ()
    way: str = ""
    on: str = ""


@dataclass(frozen=True, kw_only=True)
class UnitRow:
    """One task. `worker` is that of the newest attempt; the `_s` are seconds, of a commit."""

    key: str
    what: str
    run: str
    kind: str
    model: str
    epoch: int | None
    partition: int | None
    split: str
    state: str
    worker: str
    rows: int
    rows_failed: int
    start_s: float
    load_s: float
    compute_s: float
    save_s: float
    failure: Failure | None
    attempts: tuple[AttemptRow, ...]


@dataclass(frozen=True, kw_only=True)
class UnitsView(Paged):
    """A page of tasks."""

    rows: tuple[UnitRow, ...]


def units(state: ExperimentState, asked: UnitQuery) -> UnitsView:
    """A page of the tasks that were ever assigned, and of all tasks of ETL, test and prediction runs."""
    runs = [run for run in state.runs.values() if asked.run in ("", run.id)]
    found = [each for run in runs for each in (*_tasks(run, asked), *_visits(run, asked))]
    found.sort(key=itemgetter(0), reverse=True)
    page = page_of(found, asked.page, asked.size)
    return UnitsView(
        rows=tuple(_row(state, each) for each in page.rows),
        **page.of(_count(state)),
    )


def _count(state: ExperimentState) -> int:
    """How many there are of all, committed units counted once."""
    return sum(
        len(run.tasks) + sum(len(model.kept_visits) for model in run.models.values()) - _twice(run)
        for run in state.runs.values()
    )


def _twice(run: Run) -> int:
    """Units that have both a task and a visit."""
    return sum(task.key.kind == "train" and task.state is TaskState.COMMITTED for task in run.tasks.values())


def _tasks(run: Run, asked: UnitQuery) -> Iterator[_Found]:
    for task in run.tasks.values():
        key = task.key
        if (
            asked.model in ("", key.model)
            and asked.kind in ("", key.kind)
            and asked.state in ("", task.state.value)
            and (not asked.worker or any(asked.worker in dict(attempt.places) for attempt in task.attempts))
        ):
            yield task.attempts[-1].assigned if task.attempts else 0.0, run.id, task, "", None


def _visits(run: Run, asked: UnitQuery) -> Iterator[_Found]:
    """Units that are not among the run's tasks any more."""
    if asked.kind not in ("", "train") or asked.state not in ("", "committed"):
        return
    told, worker = _told(run), asked.worker
    for name in (asked.model,) if asked.model else run.models:
        for visit in run.models[name].kept_visits if name in run.models else ():
            if worker in ("", visit.worker, *(member.worker for member in visit.others)) and (
                not told or (name, visit.epoch, visit.partitions) not in told
            ):
                yield visit.started, run.id, None, name, visit


def _told(run: Run) -> set[tuple[str | None, int | None, tuple[int, ...]]]:
    keys = (task.key for task in run.tasks.values())
    return {(key.model, key.epoch, key.partitions) for key in keys if key.kind == "train"}


def _row(state: ExperimentState, found: _Found) -> UnitRow:
    _, name, task, model, visit = found
    if task is not None:
        return _task_row(state, state.runs[name], task)
    assert visit is not None
    key = visit.key(name, model)
    return _unit_row(state, key, "committed", [visit.as_attempt()], visit=visit)


def _task_row(state: ExperimentState, run: Run, task: Task) -> UnitRow:
    key = task.key
    model = run.models.get(key.model or "") if key.kind == "train" else None
    own = model.kept_visits if model else ()
    standing = (v for v in own if (v.epoch, v.partitions) == (key.epoch, key.partitions))
    return _unit_row(state, key, task.state.value, task.attempts, task=task, visit=next(standing, None))


def _unit_row(
    experiment: ExperimentState,
    key: TaskKey,
    state: str,
    attempts: list[Attempt],
    *,
    task: Task | None = None,
    visit: Visit | None = None,
) -> UnitRow:
    result = task.result if task else None
    timings = visit or (result.timings if result else None)
    return UnitRow(
        key=str(key),
        what=wording.task(key),
        run=key.run,
        kind=key.kind,
        model=key.model or "",
        epoch=key.epoch,
        partition=key.partition,
        split=key.split or "",
        state=state,
        worker=attempts[-1].worker if attempts else "",
        rows=visit.rows if visit else result.rows if result else 0,
        rows_failed=result.rows_failed if result else 0,
        start_s=timings.start_s if timings else 0.0,
        load_s=timings.load_s if timings else 0.0,
        compute_s=timings.compute_s if timings else 0.0,
        save_s=timings.save_s if timings else 0.0,
        failure=task.failure if task else None,
        attempts=tuple(
            AttemptRow(
                number=attempt.number,
                worker=attempt.worker,
                workers=tuple(dict(attempt.places)),
                assigned=attempt.assigned,
                started=attempt.started or None,
                ended=attempt.ended or None,
                outcome=attempt.outcome,
                devices=attempt.devices,
                way=attempt.way.label if attempt.way else "",
                on=wording.on_devices(attempt.devices, device_count(experiment, attempt.worker)),
            )
            for attempt in attempts
        ),
    )
