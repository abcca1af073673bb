"""Tasks that need no idle model (ETL, validation, test, prediction), and the workers able to run them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from cerebro.contract.runs import EvaluatePlan, EvaluateRequest
from cerebro.state import ExperimentState, Run, TaskKey, TaskState, Worker


def ready(run: Run) -> Iterator[TaskKey]:
    """Yield the pending tasks that need no idle model."""
    fitting = run.tasks.by_key.get(str(TaskKey(run=run.id, kind="fitting")))
    if fitting is not None and fitting.state is not TaskState.COMMITTED:
        if fitting.state is TaskState.PENDING:
            yield fitting.key
        return  # no row is preprocessed before the fitting task has seen them all
    if run.kind != "fit":
        yield from (task.key for task in run.counts.pending.values() if task.state is TaskState.PENDING)
    for name in run.counts.in_order(run.counts.unvalidated):
        model = run.models[name]
        for epoch in run.counts.unvalidated[name]:
            if epoch not in model.validation.unreadable and epoch not in model.validation.skipped:
                for key in run.validation_keys(model, epoch):
                    task = run.tasks.by_key.get(str(key))
                    if task is None or task.state is TaskState.PENDING:
                        yield key


def made_elsewhere(state: ExperimentState, run: Run) -> set[TaskKey]:
    """Return tasks of an ETL run whose partition another run is making: both would write the same files.

    They run afterwards and then find the partition complete.
    """
    if run.kind != "etl" or run.plan is None:
        return set()
    return {
        task.key._replace(run=run.id)
        for each in state.open_runs()
        if each is not run and each.plan is not None and each.plan.dataset == run.plan.dataset
        for task in each.tasks.open.values()
        if task.key.kind == "etl"
    }


def may_run(state: ExperimentState, run: Run, worker: Worker, key: TaskKey) -> bool:
    """True if a worker can run a task of the run other than a sub-epoch."""
    if key.kind not in worker.kinds:
        return False
    plan = run.plan
    if key.kind == "etl":
        dataset_plan = state.datasets[plan.dataset].plan if plan else None
        parts = dataset_plan.splits.get(key.split or "", ()) if dataset_plan else ()
        owner = next((part.worker for part in parts if part.partition == key.partition), "")
        if owner == worker.name or owner not in state.workers or state.workers[owner].is_removed:
            return True
        return owner in run.task(key).failed_at  # it failed there, possibly because of the machine
    if key.kind == "valid" and key.partition is not None and plan is not None:
        return (plan.dataset, key.partition) in worker.replicas  # a fold's partition
    if not isinstance(plan, EvaluatePlan) or not isinstance(run.request, EvaluateRequest):
        return True
    # A test or prediction on `train` reads the worker's own partitions; the other splits are shared.
    return run.request.split != "train" or (plan.dataset, key.partition or 0) in worker.replicas
