"""Rows of tables of tasks: each task with its attempts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cerebro.contract.tasks import Failure
from cerebro.state import Task, TaskKey, Visit, wording
from cerebro.state.tasks import Attempt
from cerebro.state.timeline import Try


@dataclass(frozen=True, kw_only=True)
class AttemptRow:
    """One attempt; times are seconds since the epoch, None while unknown. `outcome` is empty while it is open. So is
    `parallel_plan` where it runs on one device as user code is written. `on`: `devices` in words, empty of a worker
    that has one. `workers` are all that do it, of which `worker` leads.
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
class SubEpochRow:
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


def _attempt_row(attempt: Attempt, devices: int) -> AttemptRow:
    """An attempt at a worker that has so many devices."""
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
        on=wording.on_devices(attempt.devices, devices),
    )


def sub_epoch_row(
    devices: Mapping[str, int],
    key: TaskKey,
    state: str,
    attempts: Sequence[Attempt],
    *,
    task: Task | None = None,
    visit: Visit | None = None,
) -> SubEpochRow:
    """A task that is done or to be done.

    Args:
        devices: worker -> how many it has, or had; one if it is not in it.
    """
    result = task.result if task else None
    timings = visit or (result.timings if result else None)
    return SubEpochRow(
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
        attempts=tuple(_attempt_row(attempt, devices.get(attempt.worker, 1)) for attempt in attempts),
    )


def rows_of(found: Iterable[Try], devices: Mapping[str, int]) -> list[SubEpochRow]:
    """Of attempts that were read from the log, newest first: each task as it was after the last of them."""
    tasks: dict[TaskKey, list[Try]] = {}
    for each in found:
        tasks.setdefault(each.key, []).append(each)
    rows = []
    for key, tries in tasks.items():
        tries.sort(key=lambda each: each.attempt.number)
        attempts = [each.attempt for each in tries]
        rows.append(sub_epoch_row(devices, key, _state(tries[-1]), attempts, visit=tries[-1].visit))
    return sorted(rows, key=lambda row: row.attempts[-1].started or row.attempts[-1].assigned, reverse=True)


def _state(newest: Try) -> str:
    """Of a task by the last attempt that is known of it. Whether it was then given up, attempts do not tell."""
    outcome = newest.attempt.outcome
    if not outcome:
        return "running" if newest.attempt.has_run else "assigned"
    if outcome == "committed":
        is_lost = newest.key.kind == "train" and newest.visit is None
        return "pending" if is_lost else "committed"
    return "pending" if outcome.startswith("revoked: ") else "failed"
