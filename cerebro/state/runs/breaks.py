"""Breaks: time spans without progress, because a run had ended or had no worker.

Breaks count neither for the makespan nor as idle time. The log does not say when an absent worker became idle: its
silence may be noticed only after a restart of the cluster. So if all workers from the time of the last work are gone,
the break began at that time.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from cerebro.contract.runs import FitPlan
from cerebro.state.runs.run import Run
from cerebro.state.tasks.task import TaskState
from cerebro.state.workers import Worker


def end(run: Run, workers: Collection[Worker]) -> None:
    """Record a break that a change of workers has ended, if any."""
    there = _there(run, workers)
    if there and is_deserted(run, workers):
        run.clock.add_break(run.clock.worked, min(worker.since for worker in there))


def is_deserted(run: Run, workers: Collection[Worker]) -> bool:
    """Return True if no worker can continue a started fit: all from the time of the last work are gone or draining."""
    if not math.isfinite(run.clock.first_start) or any(
        task.state is TaskState.RUNNING and task.key.kind != "search" for task in run.tasks.open.values()
    ):
        return False
    return all(worker.since > run.clock.worked for worker in _there(run, workers))


def _there(run: Run, workers: Collection[Worker]) -> list[Worker]:
    """Workers that train, hold a partition of the run and accept tasks."""
    if not isinstance(run.plan, FitPlan):
        return []
    held = {(run.plan.dataset, partition) for partition in run.plan.partitions}
    return [
        w for w in workers if w.is_alive and not w.is_ending and w.trains and not held.isdisjoint(w.replicas)
    ]
