"""The workers as one experiment's page shows them: what they do for it, and since when they are silent.
Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cerebro.contract.records import WorkerStatus
from cerebro.state import ExperimentState, TaskKey, TaskState, wording
from cerebro.state.tasks import OPEN
from dispatcher.reading import SILENT_S


@dataclass(frozen=True, kw_only=True)
class WorkerRow:
    """A worker and what it does for this experiment."""

    name: str
    state: str
    doing: str
    since: float | None
    next: str
    partitions: int
    silent_s: float | None


def worker_rows(state: ExperimentState, statuses: tuple[WorkerStatus, ...]) -> Iterable[WorkerRow]:
    """All workers that the log or the store knows, by name; without those that are gone for good."""
    known = {status.record.worker: status for status in statuses}
    tasks = {key: task for run in state.runs.values() if run.is_open for key, task in run.tasks.items()}
    there = {name for name, worker in state.workers.items() if not worker.is_removed}
    for name in sorted({*there, *known}):
        worker, status = state.workers.get(name), known.get(name)
        open_tasks = [tasks[key] for key in worker.open_tasks if key in tasks] if worker else []
        running = [task for task in open_tasks if task.state is TaskState.RUNNING]
        waiting = [task for task in open_tasks if task.state in OPEN and task not in running]
        doing = wording.task(running[0].key) if running else _elsewhere(state.name, status)
        is_silent = status is not None and status.silent_s > SILENT_S
        if worker is not None and not worker.is_alive and (status is None or is_silent):
            word, doing = "lost", worker.lost
        elif is_silent:
            word = "silent"
        else:
            word = "running" if doing else "idle"
        yield WorkerRow(
            name=name,
            state=word,
            doing=doing,
            since=running[0].attempts[-1].started if running else None,
            next=", ".join(wording.task(task.key) for task in waiting),
            partitions=len(worker.holdings) if worker else 0,
            silent_s=status.silent_s if status else None,
        )


def _elsewhere(experiment: str, status: WorkerStatus | None) -> str:
    owner, _, key = (status.running if status and status.running else "").partition("/")
    if not key or owner == experiment:
        return ""
    try:
        return f"{wording.task(TaskKey.parse(key))} for experiment {owner}"
    except ValueError:
        return f"works for experiment {owner}"
