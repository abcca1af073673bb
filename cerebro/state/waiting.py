"""Whom a run waits for, in words: the answer to "why does nothing happen?". Pure."""

from __future__ import annotations

from cerebro.contract.events import EtlPlan, FitPlan
from cerebro.state.experiment import ExperimentState
from cerebro.state.models import ModelState
from cerebro.state.runs import Run, RunState
from cerebro.state.tasks import TaskState


def waiting_for(state: ExperimentState, run: Run) -> str:
    """Why a run does not go on, or an empty string when it does (or has ended)."""
    if run.state is RunState.PAUSED:
        return f"paused: {run.reason}"
    if not run.is_open or run.state is RunState.QUEUED or run.open_tasks():
        return ""
    if not any(worker.is_alive for worker in state.workers.values()):
        lost = ", ".join(f"{w.name} ({w.lost})" for w in state.workers.values())
        return f"waiting for a worker{': ' + lost if lost else ' to register'}"
    missing = _missing_holders(state, run)
    if not missing:
        return ""
    return "waiting for " + "; ".join(
        f"{who}, which {'alone holds' if run.kind == 'fit' else 'is to make'} {what}"
        for who, what in missing.items()
    )


def _missing_holders(state: ExperimentState, run: Run) -> dict[str, str]:
    """Lost workers (or nobody) and the partitions that only they can serve."""
    found: dict[str, list[str]] = {}
    if isinstance(run.plan, EtlPlan):
        for task in run.tasks.values():
            parts = run.plan.splits.get(task.key.split or "", ())
            owner = next((p.worker for p in parts if p.partition == task.key.partition), "")
            if task.state is TaskState.PENDING and not _is_alive(state, owner):
                found.setdefault(_described(state, owner), []).append(
                    f"{task.key.split} {task.key.partition}"
                )
    elif isinstance(run.plan, FitPlan):
        needed = {p for m in run.models.values() if m.state is ModelState.ACTIVE for p in m.remaining}
        for partition in sorted(needed):
            holders = state.holders(run.plan.dataset, partition)
            if not any(worker.is_alive for worker in holders):
                who = " or ".join(_described(state, worker.name) for worker in holders) or _NOBODY
                found.setdefault(who, []).append(str(partition))
    return {who: f"partition {', '.join(partitions)}" for who, partitions in found.items()}


_NOBODY = "a worker (none has it: run run_etl again with the same arguments to make it anew)"


def _is_alive(state: ExperimentState, name: str) -> bool:
    return name in state.workers and state.workers[name].is_alive


def _described(state: ExperimentState, name: str) -> str:
    worker = state.workers.get(name)
    return f"{name} ({worker.lost})" if worker and worker.lost else name
