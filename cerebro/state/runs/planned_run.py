"""Start of a planned run: its data set, tasks and models."""

from __future__ import annotations

from collections.abc import Callable

from cerebro.contract.runs import EtlPlan, EtlRequest, EvaluatePlan, FitPlan, FitRequest, Plan
from cerebro.state.models.model import Model
from cerebro.state.models.progress import Lineage
from cerebro.state.runs import folds
from cerebro.state.runs.run import Dataset, Run
from cerebro.state.tasks.keys import TaskKey
from cerebro.state.tasks.task import Task
from cerebro.state.workers import Worker


def begin(
    datasets: dict[str, Dataset], holders: Callable[[str, int], list[Worker]], run: Run, plan: Plan
) -> None:
    """Set the plan of a run.

    Args:
        datasets: data sets of the experiment; an ETL run's is added.
        holders: (data set, training partition) -> workers with a replica. Partitions without one are prepared again.
        run: a run without a plan.
    """
    run.plan = plan
    if isinstance(plan, EtlPlan):
        dataset = datasets.setdefault(plan.dataset, Dataset(id=plan.dataset, plan=plan))
        if isinstance(run.request, EtlRequest) and run.request.fits and not dataset.was_fitted:
            _add(run, TaskKey(run=run.id, kind="fitting"))
        for split, parts in plan.splits.items():
            for part in parts:
                is_lost = split == "train" and not holders(plan.dataset, part.partition)
                if is_lost or (split, part.partition) not in dataset.rows:
                    _add(run, TaskKey(run=run.id, kind="etl", split=split, partition=part.partition))
    elif isinstance(plan, FitPlan) and isinstance(run.request, FitRequest):
        for number, (name, hyperparams) in enumerate(plan.models.items()):
            fold = folds.fold_of(plan, name, number)
            run.models[name] = Model(
                id=name,
                hyperparams=hyperparams,
                epochs=run.request.epochs,
                partitions=folds.trained_partitions(plan, fold),
                lineage=Lineage(fold=fold),
            )
            run.observe_model(run.models[name])
    elif isinstance(plan, EvaluatePlan):
        for model in plan.models:
            for partition in (None,) if plan.is_whole else tuple(plan.partitions):
                _add(run, TaskKey(run=run.id, kind=run.kind, model=model, partition=partition))


def _add(run: Run, key: TaskKey) -> None:
    run.tasks.by_key[str(key)] = task = Task(key=key)
    run.observe_task(str(key), task, is_new=True)
