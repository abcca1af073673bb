"""Tasks and their attempts, newest first: sub-epochs and all other tasks of an experiment.

The tabs Schedule and Models and the read API call `list_tasks` under the read model's lock. It returns a `FromLog` if
the time range needs older pages of the log. A page has at most 500 tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Literal

from pydantic import Field

from cerebro.state import CompletedSubEpoch, ExperimentState, Run, Task, TaskState
from cerebro.state.log_pages import LogPages
from dispatcher.pages.tables import Paged, page_of
from dispatcher.read_models.from_log import FromLog
from dispatcher.read_models.read_model import ReadModel
from dispatcher.schedule.task_rows import TaskRow, rows_of, task_row
from dispatcher.schedule.window import TimeRange, WindowQuery, WindowView, time_range, window_view
from dispatcher.tabs.workers import device_count


class TaskQuery(WindowQuery):
    """Selection of tasks by run, model, worker, kind and state.

    With `since` or `until`, only tasks of one fit run in that time range: `run`, or the newest. Without them,
    all tasks that the fold has; it drops the oldest sub-epochs of a long run.
    """

    run: str = Field("", max_length=60)
    model: str = Field("", max_length=100)
    worker: str = Field("", max_length=60)
    kind: Literal[
        "", "etl", "train", "valid", "test", "predict", "inspect", "trial", "search", "fitting", "verify"
    ] = ""
    state: Literal["", "pending", "assigned", "running", "committed", "failed"] = ""
    page: int = Field(1, ge=1, le=1_000_000)
    size: int = Field(100, ge=1, le=500)


_Entry = tuple[float, str, Task | None, str, CompletedSubEpoch | None]
"""(start, run id, task, model id, sub-epoch). A sub-epoch committed at its first attempt has no task.

A plain tuple, because a long run has one per sub-epoch.
"""


@dataclass(frozen=True, kw_only=True)
class TasksView(Paged):
    """A page of tasks.

    Attributes:
        window: time range of a fit run that has started.
        zero: start of that run's first sub-epoch, in seconds since the epoch.
    """

    rows: tuple[TaskRow, ...]
    window: WindowView | None = None
    zero: float | None = None


def list_tasks(read_model: ReadModel, query: TaskQuery, now: float) -> TasksView | FromLog[TasksView]:
    """Return a page of tasks, optionally of a time range.

    A task of a fit appears once it is assigned; tasks of ETL, test and prediction runs from the start.
    """
    state = read_model.state
    is_chosen = query.since is not None or query.until is not None
    fit = read_model.fit(query.run) if query.run or is_chosen else None
    if fit is not None and query.run not in ("", fit.id):  # `fit` falls back to the newest run
        fit = None
    window = time_range(read_model, fit, query, now) if fit is not None else None
    if window is not None and window.is_in_log:
        return _deferred(state, query, window)
    within = window if window is not None and window.is_chosen else None
    runs = [fit] if within and fit else [run for run in state.runs.values() if query.run in ("", run.id)]
    tasks = [each for run in runs for each in (*_tasks(run, query), *_sub_epochs(run, query))]
    if within is not None:
        tasks = [each for each in tasks if _is_within(each, within)]
    tasks.sort(key=itemgetter(0), reverse=True)
    page, devices = page_of(tasks, query.page, query.size), _devices(state)
    return TasksView(
        rows=tuple(_row(state, each, devices) for each in page.rows),
        window=window_view(window, of_model=bool(query.model)) if window is not None else None,
        zero=window.zero if window is not None else None,
        **page.fields(_total(state)),
    )


def _devices(state: ExperimentState) -> dict[str, int]:
    return {name: device_count(state, name) for name in state.workers}


def _is_within(entry: _Entry, window: TimeRange) -> bool:
    _, _, task, _, sub_epoch = entry
    if sub_epoch is not None:
        return sub_epoch.started <= window.until and sub_epoch.ended >= window.since
    if task is None or not task.attempts:
        return False
    newest = task.attempts[-1]
    is_over = newest.outcome and newest.ended < window.since
    return task.attempts[0].assigned <= window.until and not is_over


def _deferred(state: ExperimentState, query: TaskQuery, window: TimeRange) -> FromLog[TasksView]:
    """Return a view that reads the range from the log; worker and state are filtered after reading."""
    total, devices = _total(state), _devices(state)

    def make(pages: LogPages) -> TasksView:
        read = pages.window(
            window.log,
            window.run,
            window.since,
            window.until,
            chosen=lambda key: query.model in ("", key.model) and query.kind in ("", key.kind),
        )
        rows = rows_of(read.task_attempts, devices)
        rows = [
            row
            for row in rows
            if query.state in ("", row.state)
            and (not query.worker or any(query.worker in each.workers for each in row.attempts))
        ]
        page = page_of(rows, query.page, query.size)
        view = window_view(window, read, of_model=bool(query.model))
        return TasksView(rows=tuple(page.rows), window=view, zero=window.zero, **page.fields(total))

    return FromLog(make)


def _total(state: ExperimentState) -> int:
    """Return the number of all tasks, without filters. A committed sub-epoch counts once."""
    return sum(
        len(run.tasks.by_key)
        + sum(len(model.sub_epochs) - model.lineage.sub_epochs for model in run.models.values())
        - _duplicates(run)
        for run in state.runs.values()
    )


def _duplicates(run: Run) -> int:
    """Return the number of committed training tasks; their sub-epochs are counted already."""
    return sum(
        task.key.kind == "train" and task.state is TaskState.COMMITTED for task in run.tasks.by_key.values()
    )


def _tasks(run: Run, query: TaskQuery) -> Iterator[_Entry]:
    for task in run.tasks.by_key.values():
        key = task.key
        if (
            query.model in ("", key.model)
            and query.kind in ("", key.kind)
            and query.state in ("", task.state.value)
            and (not query.worker or any(query.worker in dict(attempt.places) for attempt in task.attempts))
        ):
            yield task.attempts[-1].assigned if task.attempts else 0.0, run.id, task, "", None


def _sub_epochs(run: Run, query: TaskQuery) -> Iterator[_Entry]:
    """Yield completed sub-epochs without a task."""
    if query.kind not in ("", "train") or query.state not in ("", "committed"):
        return
    keys, worker = _task_keys(run), query.worker
    for name in (query.model,) if query.model else run.models:
        for sub_epoch in run.models[name].kept_sub_epochs if name in run.models else ():
            if worker in ("", sub_epoch.worker, *(member.worker for member in sub_epoch.other_members)) and (
                not keys or (name, sub_epoch.epoch, sub_epoch.partitions) not in keys
            ):
                yield sub_epoch.started, run.id, None, name, sub_epoch


def _task_keys(run: Run) -> set[tuple[str | None, int | None, tuple[int, ...]]]:
    keys = (task.key for task in run.tasks.by_key.values())
    return {(key.model, key.epoch, key.partitions) for key in keys if key.kind == "train"}


def _row(state: ExperimentState, found: _Entry, devices: Mapping[str, int]) -> TaskRow:
    _, name, task, model, sub_epoch = found
    if task is not None:
        return _task_row(state.runs[name], task, devices)
    assert sub_epoch is not None
    key = sub_epoch.key(name, model)
    return task_row(devices, key, "committed", [sub_epoch.as_attempt()], sub_epoch=sub_epoch)


def _task_row(run: Run, task: Task, devices: Mapping[str, int]) -> TaskRow:
    key = task.key
    model = run.models.get(key.model or "") if key.kind == "train" else None
    sub_epochs = model.kept_sub_epochs if model else ()
    committed = (v for v in sub_epochs if (v.epoch, v.partitions) == (key.epoch, key.partitions))
    return task_row(devices, key, task.state.value, task.attempts, task=task, sub_epoch=next(committed, None))
