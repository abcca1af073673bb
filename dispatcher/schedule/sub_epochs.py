"""Tasks and their attempts, newest first: sub-epochs of training, and what else workers do for an experiment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Literal

from pydantic import Field

from cerebro.state import ExperimentState, Run, Task, TaskState, Visit
from cerebro.state.log_pages import LogPages
from dispatcher.pages.tables import Paged, page_of
from dispatcher.reading.from_log import FromLog
from dispatcher.reading.read_model import ReadModel
from dispatcher.schedule.sub_epoch_rows import SubEpochRow, rows_of, sub_epoch_row
from dispatcher.schedule.window import Stretch, WindowQuery, WindowView, shown, stretch
from dispatcher.tabs.workers import device_count


class SubEpochQuery(WindowQuery):
    """Which tasks: of a run (all runs if empty), a model, a worker; of a kind; in a state. With `since` or `until`, or
    of a long run, those of one fit run that were under way then."""

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
"""When it began, its run, and the task; or of a sub-epoch that was committed at its first attempt the model and visit:
of those only the visit is kept. Plain, because there is one for each sub-epoch of a long run."""


@dataclass(frozen=True, kw_only=True)
class SubEpochsView(Paged):
    """A page of tasks; of a fit run that has begun the window that was looked at."""

    rows: tuple[SubEpochRow, ...]
    window: WindowView | None = None


def sub_epochs(
    read_model: ReadModel, asked: SubEpochQuery, now: float
) -> SubEpochsView | FromLog[SubEpochsView]:
    """A page of the tasks that were ever assigned, and of all tasks of ETL, test and prediction runs; of those of a
    window alone, if one is asked for."""
    state = read_model.state
    is_chosen = asked.since is not None or asked.until is not None
    fit = read_model.fit(asked.run) if asked.run or is_chosen else None
    if fit is not None and asked.run not in ("", fit.id):
        fit = None
    found = stretch(read_model, fit, asked, now) if fit is not None else None
    if found is not None and found.is_in_log:
        return _of_log(state, asked, found)
    within = found if found is not None and found.is_chosen else None
    runs = [fit] if within and fit else [run for run in state.runs.values() if asked.run in ("", run.id)]
    tasks = [each for run in runs for each in (*_tasks(run, asked), *_visits(run, asked))]
    if within is not None:
        tasks = [each for each in tasks if _is_within(each, within)]
    tasks.sort(key=itemgetter(0), reverse=True)
    page, devices = page_of(tasks, asked.page, asked.size), _devices(state)
    return SubEpochsView(
        rows=tuple(_row(state, each, devices) for each in page.rows),
        window=shown(found, of_model=bool(asked.model)) if found is not None else None,
        **page.of(_count(state)),
    )


def _devices(state: ExperimentState) -> dict[str, int]:
    return {name: device_count(state, name) for name in state.workers}


def _is_within(found: _Found, window: Stretch) -> bool:
    _, _, task, _, visit = found
    if visit is not None:
        return visit.started <= window.until and visit.ended >= window.since
    if task is None or not task.attempts:
        return False
    newest = task.attempts[-1]
    is_over = newest.outcome and newest.ended < window.since
    return task.attempts[0].assigned <= window.until and not is_over


def _of_log(state: ExperimentState, asked: SubEpochQuery, found: Stretch) -> FromLog[SubEpochsView]:
    """The same of a stretch that the fold lacks sub-epochs of."""
    total, devices = _count(state), _devices(state)

    def make(pages: LogPages) -> SubEpochsView:
        read = pages.window(
            found.log,
            found.run,
            found.since,
            found.until,
            chosen=lambda key: asked.model in ("", key.model) and asked.kind in ("", key.kind),
        )
        rows = rows_of(read.tries, devices)
        rows = [
            row
            for row in rows
            if asked.state in ("", row.state)
            and (not asked.worker or any(asked.worker in each.workers for each in row.attempts))
        ]
        page = page_of(rows, asked.page, asked.size)
        window = shown(found, read, of_model=bool(asked.model))
        return SubEpochsView(rows=tuple(page.rows), window=window, **page.of(total))

    return FromLog(make)


def _count(state: ExperimentState) -> int:
    """How many there are of all, committed sub-epochs counted once."""
    return sum(
        len(run.tasks)
        + sum(len(model.visits) - model.inherited for model in run.models.values())
        - _twice(run)
        for run in state.runs.values()
    )


def _twice(run: Run) -> int:
    """Sub-epochs that have both a task and a visit."""
    return sum(task.key.kind == "train" and task.state is TaskState.COMMITTED for task in run.tasks.values())


def _tasks(run: Run, asked: SubEpochQuery) -> Iterator[_Found]:
    for task in run.tasks.values():
        key = task.key
        if (
            asked.model in ("", key.model)
            and asked.kind in ("", key.kind)
            and asked.state in ("", task.state.value)
            and (not asked.worker or any(asked.worker in dict(attempt.places) for attempt in task.attempts))
        ):
            yield task.attempts[-1].assigned if task.attempts else 0.0, run.id, task, "", None


def _visits(run: Run, asked: SubEpochQuery) -> Iterator[_Found]:
    """Sub-epochs that are not among the run's tasks any more."""
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


def _row(state: ExperimentState, found: _Found, devices: Mapping[str, int]) -> SubEpochRow:
    _, name, task, model, visit = found
    if task is not None:
        return _task_row(state.runs[name], task, devices)
    assert visit is not None
    key = visit.key(name, model)
    return sub_epoch_row(devices, key, "committed", [visit.as_attempt()], visit=visit)


def _task_row(run: Run, task: Task, devices: Mapping[str, int]) -> SubEpochRow:
    key = task.key
    model = run.models.get(key.model or "") if key.kind == "train" else None
    own = model.kept_visits if model else ()
    committed = (v for v in own if (v.epoch, v.partitions) == (key.epoch, key.partitions))
    return sub_epoch_row(
        devices, key, task.state.value, task.attempts, task=task, visit=next(committed, None)
    )
