"""Rows of task tables: each task with its attempts. Pure. `schedule.tasks` selects the tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cerebro.contract.tasks.failures import Failure
from cerebro.contract.tasks.results import Timings
from cerebro.state import CompletedSubEpoch, Task, TaskKey
from cerebro.state.reports import state_words
from cerebro.state.reports.timeline import TaskAttempt
from cerebro.state.tasks.task import Attempt


@dataclass(frozen=True, kw_only=True)
class AttemptRow:
    """One attempt, also as JSON of the read API. Times are Unix times in seconds, `None` if unknown.

    Attributes:
        workers: all workers of a gang; `worker` leads it.
        outcome: an empty text while the attempt is open.
        parallel_plan: parallel plan, or an empty text for a single device.
        on: `devices` in words, or an empty text for workers with one device.
    """

    number: int
    worker: str
    workers: tuple[str, ...] = ()
    assigned: float
    started: float | None
    ended: float | None
    outcome: str
    devices: tuple[int, ...] = ()
    parallel_plan: str = ""
    on: str = ""


@dataclass(frozen=True, kw_only=True)
class TaskRow:
    """One task, also as JSON of the read API.

    Attributes:
        what: the task in words.
        worker: worker of the newest attempt.
        rows, rows_failed: rows of data that were processed and that failed.
        start_s, load_s, compute_s, save_s: seconds of the committed attempt.
    """

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


def _attempt_row(attempt: Attempt, devices: int) -> AttemptRow:
    return AttemptRow(
        number=attempt.number,
        worker=attempt.worker,
        workers=tuple(dict(attempt.places)),
        assigned=attempt.assigned,
        started=attempt.started or None,
        ended=attempt.ended or None,
        outcome=attempt.outcome,
        devices=attempt.devices,
        parallel_plan=attempt.parallel_plan.label if attempt.parallel_plan else "",
        on=state_words.on_devices(attempt.devices, devices),
    )


def task_row(
    devices: Mapping[str, int],
    key: TaskKey,
    state: str,
    attempts: Sequence[Attempt],
    *,
    task: Task | None = None,
    sub_epoch: CompletedSubEpoch | None = None,
) -> TaskRow:
    """Build the row of a task.

    Args:
        devices: worker -> number of devices; missing workers have one.
    """
    result = task.result if task else None
    timings = sub_epoch.timings if sub_epoch else result.timings if result else Timings()
    return TaskRow(
        key=str(key),
        what=state_words.task(key),
        run=key.run,
        kind=key.kind,
        model=key.model or "",
        epoch=key.epoch,
        partition=key.partition,
        split=key.split or "",
        state=state,
        worker=attempts[-1].worker if attempts else "",
        rows=sub_epoch.rows if sub_epoch else result.rows if result else 0,
        rows_failed=result.rows_failed if result else 0,
        start_s=timings.start_s,
        load_s=timings.load_s,
        compute_s=timings.compute_s,
        save_s=timings.save_s,
        failure=task.failure if task else None,
        attempts=tuple(_attempt_row(attempt, devices.get(attempt.worker, 1)) for attempt in attempts),
    )


def rows_of(found: Iterable[TaskAttempt], devices: Mapping[str, int]) -> list[TaskRow]:
    """Build rows from attempts that were read from the log, newest first."""
    by_task: dict[TaskKey, list[TaskAttempt]] = {}
    for each in found:
        by_task.setdefault(each.key, []).append(each)
    rows = []
    for key, task_attempts in by_task.items():
        task_attempts.sort(key=lambda each: each.attempt.number)
        attempts = [each.attempt for each in task_attempts]
        rows.append(
            task_row(devices, key, _state(task_attempts[-1]), attempts, sub_epoch=task_attempts[-1].sub_epoch)
        )
    return sorted(rows, key=lambda row: row.attempts[-1].started or row.attempts[-1].assigned, reverse=True)


def _state(newest: TaskAttempt) -> str:
    """Return a task's state after its last known attempt. Attempts do not say if the task failed permanently."""
    outcome = newest.attempt.outcome
    if not outcome:
        return "running" if newest.attempt.has_run else "assigned"
    if outcome == "committed":
        is_lost = newest.key.kind == "train" and newest.sub_epoch is None
        return "pending" if is_lost else "committed"
    return "pending" if outcome.startswith("revoked: ") else "failed"
