"""When a run stood still because it had ended, or because no worker of it was there: a break.

It counts neither for the makespan nor as idle time. When a worker went away the log does not say if it was idle then:
it is noticed when it is silent, perhaps only when the whole cluster has been started again. So if none of the workers
that were there when work was last done is there any more, the break began at that time.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from cerebro.contract.runs import FitPlan
from cerebro.state.runs import Run
from cerebro.state.tasks import TaskState
from cerebro.state.workers import Worker


def add(run: Run, since: float, until: float) -> None:
    """`run` stood still from `since` to `until` (the store's clock, seconds); breaks are told in order."""
    run.breaks.append((since, until))
    run.worked = max(run.worked, until)


def begun(run: Run) -> float:
    """When `run` started, shifted by its breaks: its end less this is its time without breaks. 0 before it starts."""
    return run.started + sum(until - since for since, until in run.breaks) if run.started else 0.0


def worked_until(run: Run, at: float) -> float:
    """The time `at` by a clock that stands still in the breaks and pauses of `run`: earlier by those before it."""
    stood, edge = 0.0, -math.inf
    for since, until in sorted([*run.breaks, *run.pauses]):
        stood += max(0.0, min(at, until) - max(since, edge))
        edge = max(edge, until)
    return at - stood


def end(run: Run, workers: Collection[Worker]) -> None:
    """A worker has come or gone: note a break that is over, if there is one."""
    there = _there(run, workers)
    if there and is_deserted(run, workers):
        add(run, run.worked, min(worker.since for worker in there))


def is_deserted(run: Run, workers: Collection[Worker]) -> bool:
    """Whether nobody does, or could do, a sub-epoch of a fit that has begun: all who could when work was last done are
    gone or are about to go."""
    if not math.isfinite(run.origin) or any(
        task.state is TaskState.RUNNING and task.key.kind != "search" for task in run.open.values()
    ):
        return False
    return all(worker.since > run.worked for worker in _there(run, workers))


def _there(run: Run, workers: Collection[Worker]) -> list[Worker]:
    """Workers that train, hold a partition of the run, and may be given tasks."""
    if not isinstance(run.plan, FitPlan):
        return []
    held = {(run.plan.dataset, partition) for partition in run.plan.partitions}
    return [
        w for w in workers if w.is_alive and not w.is_ending and w.trains and not held.isdisjoint(w.replicas)
    ]
