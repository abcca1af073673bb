"""Tasks that need no model to be idle (ETL, validation, test, prediction): which are to be done, and who can do them.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from cerebro.contract.runs import EvaluatePlan, EvaluateRequest
from cerebro.state import ExperimentState, Run, TaskKey, TaskState, Worker

_READING = ("valid", "test", "predict")
"""Tasks that read a split; sub-epochs of training are done by workers that hold a partition, and so can read it."""


def ready(run: Run) -> Iterator[TaskKey]:
    """What is to be done and needs no model to be idle: ETL, validation, test, prediction."""
    fitting = run.tasks.get(str(TaskKey(run=run.id, kind="fitting")))
    if fitting is not None and fitting.state is not TaskState.COMMITTED:
        if fitting.state is TaskState.PENDING:
            yield fitting.key
        return  # no row is preprocessed before it is known what all of them have in common
    if run.kind != "fit":
        yield from (task.key for task in run.counts.pending.values() if task.state is TaskState.PENDING)
    for name in run.counts.in_order(run.counts.unvalidated):
        model = run.models[name]
        for epoch in run.counts.unvalidated[name]:
            if epoch not in model.unreadable and epoch not in model.unvalidated:
                key = TaskKey(run=run.id, kind="valid", model=name, epoch=epoch)
                task = run.tasks.get(str(key))
                if task is None or task.state is TaskState.PENDING:
                    yield key


def made_elsewhere(state: ExperimentState, run: Run) -> set[TaskKey]:
    """Tasks of an ETL run whose partition another run is making again: two at a time would write the same files. They
    are done after that, at the cost of reading what is there."""
    if run.kind != "etl" or run.plan is None:
        return set()
    return {
        task.key._replace(run=run.id)
        for each in state.open_runs()
        if each is not run and each.plan is not None and each.plan.dataset == run.plan.dataset
        for task in each.open.values()
        if task.key.kind == "etl"
    }


def may_run(state: ExperimentState, run: Run, worker: Worker, key: TaskKey) -> bool:
    """Whether a worker can do a task of the run that is no sub-epoch of training."""
    if key.kind not in worker.kinds:
        return False
    plan = run.plan
    if key.kind == "etl":
        made = state.datasets[plan.dataset].plan if plan else None
        parts = made.splits.get(key.split or "", ()) if made else ()
        owner = next((part.worker for part in parts if part.partition == key.partition), "")
        if owner == worker.name or owner not in state.workers or state.workers[owner].is_removed:
            return True
        return owner in run.task(key).shunned  # it failed there of what may be the machine's
    if not isinstance(plan, EvaluatePlan) or not isinstance(run.request, EvaluateRequest):
        return True
    # The data of a test or prediction on `train` lies on the worker that made it; the other splits are shared.
    return run.request.split != "train" or (plan.dataset, key.partition or 0) in worker.replicas
