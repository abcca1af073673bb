"""What the cluster page needs of one experiment: its open runs, its workers, what they run and when they did; and the
queue of runs, with why each waits. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from cerebro.contract.api import QueueAnswer
from cerebro.contract.records import Troubles
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
    wording,
)
from cerebro.state.sharing import lanes_held
from cerebro.state.throughput import TimeLeft
from cerebro.state.timeline import busy
from cerebro.state.workers import WorkerChange

_MOST_CHANGES = 200


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """An open run; `reason`: why it does not go on, as far as its log tells. `requested`: seconds since the epoch.
    `left`: how long it will take yet, if that can be told."""

    state: str = "queued"
    done: int = 0
    total: int = 0
    author: str = ""
    requested: float | None = None
    reason: str = ""
    is_queued: bool = False
    left: TimeLeft | None = None


@dataclass(frozen=True, kw_only=True)
class WorkerSummary:
    """A worker as the log knows it. `lost`: why it is not alive, since `since`. `next`: what waits in its inbox."""

    lost: str
    since: float
    next: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One experiment.

    Attributes:
        runs: open ones, by id. workers: by name.
        held: what each of these runs has, by its id (`lanes_held`).
        started: of each running task, by key. devices: of each open one, by key, those that it has.
        busy: worker -> spans of time in which a device had a task; all in seconds since the epoch.
        changes: workers that came and went meanwhile, the newest `_MOST_CHANGES`.
    """

    runs: Mapping[str, RunSummary]
    workers: Mapping[str, WorkerSummary]
    held: Mapping[str, frozenset[tuple[str, int]]]
    started: Mapping[str, float]
    devices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    busy: Mapping[str, tuple[tuple[float, float], ...]]
    changes: tuple[WorkerChange, ...] = ()


def summary(
    state: ExperimentState,
    *,
    troubles: Troubles,
    begin: float,
    now: float,
    left: Callable[[Run], TimeLeft | None] = lambda run: None,
) -> Summary:
    """An experiment's part in the cluster from `begin` to `now` (seconds since the epoch).

    Args:
        left: how long an open run will take yet.
    """
    open_runs = state.open_runs()
    return Summary(
        runs={run.id: replace(_run(state, run, troubles), left=left(run)) for run in open_runs},
        workers={
            name: WorkerSummary(
                lost=worker.lost,
                since=worker.since,
                next=tuple(
                    _waiting(key, devices, worker.devices)
                    for key, devices in worker.open_tasks.items()
                    if not worker.is_next(key)
                ),
            )
            for name, worker in state.workers.items()
            if not worker.is_removed
        },
        held={run.id: lanes_held(state, run) for run in open_runs},
        started={key: task.attempts[-1].started for run in open_runs for key, task in run.open.items()},
        devices={key: task.attempts[-1].devices for run in open_runs for key, task in run.open.items()},
        busy=_busy(state, begin, now),
        changes=tuple(each for each in state.worker_changes[-_MOST_CHANGES:] if each.time >= begin),
    )


def doing(task: str) -> str:
    """What a worker does at the task of that key, in words."""
    try:
        return wording.task(TaskKey.parse(task)) if task else ""
    except ValueError:
        return task


def _waiting(task: str, devices: tuple[int, ...], there: int) -> str:
    where = wording.on_devices(devices, there)
    return f"{doing(task)} ({where})" if where else doing(task)


def _run(state: ExperimentState, run: Run, troubles: Troubles) -> RunSummary:
    done, total = run.progress()
    waits = explained(waiting_for(state, run), troubles.pods, troubles.note)
    return RunSummary(
        state=wording.run(run),
        done=done,
        total=total if run.has_known_end else 0,
        author=run.author,
        requested=run.requested,
        reason=waits,
        is_queued=run.state is RunState.QUEUED,
    )


def _busy(state: ExperimentState, begin: float, end: float) -> dict[str, tuple[tuple[float, float], ...]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for run in state.runs.values():
        if run.started and (run.is_open or run.ended > begin):
            for each in busy(run, end, since=begin):
                if each.ended > begin:
                    # One of several devices is busy on each; one without any is the work of its worker, too.
                    spans = [(each.started, each.ended)] * max(1, len(each.devices))
                    found.setdefault(each.worker, []).extend(spans)
    return {worker: tuple(spans) for worker, spans in found.items()}


# --- the queue ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class QueueRow:
    """A run that has not ended: number `position` of all of them, by when they were asked for. `told` is as its log
    says; `reason`: why it waits, empty if it does not."""

    position: int
    experiment: str
    run: str
    queue_position: QueuePosition
    told: RunSummary
    reason: str


_PLANNED = "the controller plans it"


def queue_rows(queued: QueueAnswer, summaries: Mapping[str, Summary]) -> Iterable[QueueRow]:
    """The queue, oldest run first."""
    for position, each in enumerate(queue_positions(queued), start=1):
        known = summaries.get(each.experiment)
        told = known.runs.get(each.run, RunSummary()) if known else RunSummary()
        lanes = known.held.get(each.run) if known else None
        queue_position = each if lanes is None else each.with_devices(lanes)
        yield QueueRow(
            position=position,
            experiment=queue_position.experiment,
            run=queue_position.run,
            queue_position=queue_position,
            told=told,
            reason=reason_to_wait(told.reason, queue_position, _PLANNED if told.is_queued else ""),
        )
