"""Workers of an experiment: state and tasks, for the header and the tab Overview. Pure.

Combines the experiment's log with the statuses that workers report to the store. `dispatcher.cluster.view` shows
workers of the whole cluster.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cerebro.contract.records import WorkerStatus
from cerebro.figures.schedule.spans import by_number
from cerebro.state import ExperimentState, TaskKey, TaskState
from cerebro.state.reports import state_words
from cerebro.state.tasks.task import OPEN


@dataclass(frozen=True, kw_only=True)
class WorkerRow:
    """A worker with the tasks on all its devices.

    Attributes:
        since: start of its longest running task for this experiment.
        reported: time of the last report of a lost worker.
        lost: why the controller considers it lost.
    """

    name: str
    state: str
    doing: tuple[str, ...]
    since: float | None
    next: tuple[str, ...]
    partitions: int
    reported: float | None
    lost: str


def worker_state(status: WorkerStatus, *, is_busy: bool) -> str:
    """Return the word for a worker's state, the same on all pages."""
    if status.is_lost:
        return "lost"
    if status.leaving:
        return "stopping"
    return "running" if is_busy else "idle"


def device_count(state: ExperimentState, worker: str) -> int:
    """Return the number of devices of a worker, also after it left."""
    known = state.workers.get(worker)
    return known.most_devices if known else 1


def worker_rows(
    state: ExperimentState, statuses: tuple[WorkerStatus, ...], now: float
) -> Iterable[WorkerRow]:
    """Yield all workers of the log and the store at `now` (seconds since the epoch), by number, without removed
    ones.
    """
    known = {status.record.worker: status for status in statuses}
    tasks = {
        key: task for run in state.runs.values() if run.is_open for key, task in run.tasks.by_key.items()
    }
    present = {name for name, worker in state.workers.items() if not worker.is_removed}
    for name in sorted({*present, *known}, key=by_number):
        worker, status = state.workers.get(name), known.get(name)
        open_tasks = [tasks[key] for key in worker.open_tasks if key in tasks] if worker else []
        running = [task for task in open_tasks if task.state is TaskState.RUNNING]
        waiting = [task for task in open_tasks if task.state in OPEN and task not in running]
        devices = worker.devices if worker else 1
        own_tasks = (state_words.attempt(task, devices) for task in running)
        doing = (*own_tasks, *_tasks_elsewhere(state.name, status))
        if status is not None:
            word = worker_state(status, is_busy=bool(doing))
        else:
            word = "lost" if worker is not None and not worker.is_alive else "running" if doing else "idle"
        lost = worker.lost if word == "lost" and worker is not None and not worker.is_alive else ""
        yield WorkerRow(
            name=name,
            state=word,
            doing=(lost,) if lost else doing,
            since=min((task.attempts[-1].started for task in running), default=None),
            next=tuple(state_words.attempt(task, devices) for task in waiting),
            partitions=len(worker.replicas) if worker else 0,
            reported=now - status.silent_s if status and word == "lost" else None,
            lost=lost,
        )


def _tasks_elsewhere(experiment: str, status: WorkerStatus | None) -> Iterable[str]:
    parts = (task.partition("/") for task in (status.tasks if status else ()))
    return (_task_elsewhere_text(owner, key) for owner, _, key in parts if key and owner != experiment)


def _task_elsewhere_text(experiment: str, key: str) -> str:
    try:
        return f"{state_words.task(TaskKey.parse(key))} for experiment {experiment}"
    except ValueError:
        return f"works for experiment {experiment}"
