"""One experiment's part of the cluster page, and rows of the queue. Pure.

`snapshot.Cluster` calls `summary` for each experiment under the lock of its read model. The result refers to no
mutable state, so `view.cluster` can combine many experiments without locks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from cerebro.contract.records import WorkerSetStatus
from cerebro.contract.rest.api import QueueAnswer
from cerebro.state import (
    ExperimentState,
    QueuePosition,
    Run,
    RunState,
    TaskKey,
    explained,
    queue_positions,
    reason_to_wait,
    waiting_for,
)
from cerebro.state.reports import state_words
from cerebro.state.reports.sharing import held_slots
from cerebro.state.reports.throughput import TimeLeft
from cerebro.state.reports.timeline import busy
from cerebro.state.workers import WorkerChange

_MAX_CHANGES = 200


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """An open run.

    Attributes:
        requested: time of the request, seconds since the epoch.
        reason: why the run waits, according to its log.
        time_left: estimated remaining time, if known.
    """

    state: str = "queued"
    done: int = 0
    total: int = 0
    author: str = ""
    requested: float | None = None
    reason: str = ""
    is_queued: bool = False
    time_left: TimeLeft | None = None


@dataclass(frozen=True, kw_only=True)
class WorkerSummary:
    """A worker according to the experiment's log.

    Attributes:
        lost: why the worker is lost.
        since: time of its last change.
        next: tasks in its inbox that have not started.
    """

    lost: str
    since: float
    next: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One experiment, for the cluster page. Times are seconds since the epoch.

    Attributes:
        runs: open runs by id.
        workers: workers by name.
        held: device slots of each open run (`held_slots`).
        started: start of each open task, by key.
        devices: devices of each open task, by key.
        busy: worker -> (from, to, number of devices) of its tasks.
        changes: workers that joined or were lost, the newest `_MAX_CHANGES`.
    """

    runs: Mapping[str, RunSummary]
    workers: Mapping[str, WorkerSummary]
    held: Mapping[str, frozenset[tuple[str, int]]]
    started: Mapping[str, float]
    devices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    busy: Mapping[str, tuple[tuple[float, float, float], ...]]
    changes: tuple[WorkerChange, ...] = ()


def summary(
    state: ExperimentState,
    *,
    worker_set_status: WorkerSetStatus,
    begin: float,
    now: float,
    time_left: Callable[[Run], TimeLeft | None] = lambda run: None,
) -> Summary:
    """Summarize an experiment from `begin` to `now` (seconds since the epoch).

    Args:
        time_left: estimates the remaining time of an open run.
    """
    open_runs = state.open_runs()
    return Summary(
        runs={
            run.id: replace(_run(state, run, worker_set_status), time_left=time_left(run))
            for run in open_runs
        },
        workers={
            name: WorkerSummary(
                lost=worker.lost,
                since=worker.since,
                next=tuple(
                    _waiting_text(key, devices, worker.devices)
                    for key, devices in worker.open_tasks.items()
                    if not worker.is_next(key)
                ),
            )
            for name, worker in state.workers.items()
            if not worker.is_removed
        },
        held={run.id: held_slots(state, run) for run in open_runs},
        started={key: task.attempts[-1].started for run in open_runs for key, task in run.tasks.open.items()},
        devices={key: task.attempts[-1].devices for run in open_runs for key, task in run.tasks.open.items()},
        busy=_busy(state, begin, now),
        changes=tuple(each for each in state.worker_changes[-_MAX_CHANGES:] if each.time >= begin),
    )


def task_text(task: str) -> str:
    """Describe a task in words."""
    try:
        return state_words.task(TaskKey.parse(task)) if task else ""
    except ValueError:
        return task


def _waiting_text(task: str, devices: tuple[int, ...], there: int) -> str:
    where = state_words.on_devices(devices, there)
    return f"{task_text(task)} ({where})" if where else task_text(task)


def _run(state: ExperimentState, run: Run, worker_set_status: WorkerSetStatus) -> RunSummary:
    done, total = run.progress()
    waits = explained(waiting_for(state, run), worker_set_status.pods, worker_set_status.note)
    return RunSummary(
        state=state_words.run(run),
        done=done,
        total=total if run.has_known_end else 0,
        author=run.author,
        requested=run.clock.requested,
        reason=waits,
        is_queued=run.state is RunState.QUEUED,
    )


def _busy(
    state: ExperimentState, begin: float, end: float
) -> dict[str, tuple[tuple[float, float, float], ...]]:
    found: dict[str, list[tuple[float, float, float]]] = {}
    for run in state.runs.values():
        if run.clock.started and (run.is_open or run.clock.ended > begin):
            for each in busy(run, end, since=begin):
                if each.ended > begin:
                    # A task without devices counts as one device.
                    span = (each.started, each.ended, each.num_devices or 1.0)
                    found.setdefault(each.worker, []).append(span)
    return {worker: tuple(spans) for worker, spans in found.items()}


# --- the queue ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class QueueRow:
    """A run that has not ended.

    Attributes:
        position: position in the queue, by time of request.
        run_summary: the run according to its log.
        reason: why it waits, or an empty text.
    """

    position: int
    experiment: str
    run: str
    queue_position: QueuePosition
    run_summary: RunSummary
    reason: str


_PLANNED = "the controller is planning it"


def queue_rows(queued: QueueAnswer, summaries: Mapping[str, Summary]) -> Iterable[QueueRow]:
    """Yield the queue, oldest run first."""
    for position, each in enumerate(queue_positions(queued), start=1):
        known = summaries.get(each.experiment)
        run = known.runs.get(each.run, RunSummary()) if known else RunSummary()
        slots = known.held.get(each.run) if known else None
        queue_position = each if slots is None else each.with_devices(slots)
        yield QueueRow(
            position=position,
            experiment=queue_position.experiment,
            run=queue_position.run,
            queue_position=queue_position,
            run_summary=run,
            reason=reason_to_wait(run.reason, queue_position, _PLANNED if run.is_queued else ""),
        )
