"""Effects of a commit beyond its task: on model, run and data set."""

from __future__ import annotations

from collections.abc import Mapping

from cerebro.contract.events import TaskCommitted
from cerebro.contract.metrics import ADVICE
from cerebro.contract.runs import MEASURES, FitRequest
from cerebro.contract.search_tasks import SearchAnswer
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.results import TaskResult
from cerebro.state.models.completed_sub_epoch import CompletedSubEpoch
from cerebro.state.models.model import Model
from cerebro.state.runs.parts.stack_times import StackKey
from cerebro.state.runs.run import Dataset, Run
from cerebro.state.runs.search_log import SearchLog
from cerebro.state.tasks import measurements
from cerebro.state.tasks.task import Task, TaskState
from cerebro.state.workers import Worker


def commit(
    event: TaskCommitted,
    run: Run,
    task: Task,
    *,
    worker: Worker,
    model: Model | None,
    datasets: Mapping[str, Dataset],
    workers: Mapping[str, Worker],
) -> None:
    """Apply the commit of `task` by `worker`.

    Args:
        model: the model it trains or validates, if any.
        workers: all workers, including `worker`.
    """
    result = event.result
    match task.key.kind:
        case "train" if model:
            _train(event, run, task, model, workers)
        case "valid" if model:
            _validate(result, run, task, model)
        case "etl":
            _make(result, run, task, worker, datasets)
        case "fitting" if run.plan:
            dataset = datasets[run.plan.dataset]
            dataset.fitted, dataset.was_fitted = result.fitted, True
            task.result = result
        case "inspect" | "trial":
            measurements.commit(result, run, task)
        case "verify":
            pass  # `verifications.observe_reexecution` handles it; it also needs the verified worker
        case "search" if run.search:
            _answer(result, run, run.search, task)
        case _:
            task.result = result
    if model:
        _require_metric(run, task, model, result.metrics)
        run.settle(model)


def _validate(result: TaskResult, run: Run, task: Task, model: Model) -> None:
    epoch, fold = task.key.epoch or 0, model.lineage.fold
    metrics: dict[str, float] | None = result.metrics
    if fold is not None:
        if not model.validation.may_come(epoch):
            return
        metrics = model.validation.add_part(epoch, task.key.partition or 0, result.part, fold.partitions)
    if metrics is not None:
        model.validate(epoch, metrics)
        _require_merged(run, task, model, metrics, result.metrics)
    if isinstance(run.request, FitRequest) and "test_row_s" in run.request.compared_names:
        model.validation.row_s[epoch] = result.timings.compute_s / max(1, result.rows)


def _require_merged(
    run: Run, task: Task, model: Model, metrics: Mapping[str, object], returned: Mapping[str, object]
) -> None:
    """Fail a model if a compared metric of one partition cannot be merged with its other partitions."""
    lost = [name for name in run.fit_request.compared_names if name in returned and name not in metrics]
    if lost:
        message = (
            f"metric {lost[0]!r} of model {model.id} in epoch {task.key.epoch} is missing on some partitions of its "
            f"fold, or a number on some and a Ratio on others: {ADVICE}"
        )
        model.give_up(Failure(kind=FailureKind.USER_ERROR, message=message))
        run.observe_model(model)


def _require_metric(run: Run, task: Task, model: Model, returned: Mapping[str, object]) -> None:
    """Fail a model whose results lack a metric that the run compares."""
    if not isinstance(run.request, FitRequest) or task.key.kind != ("valid" if run.is_validated else "train"):
        return
    known = set(returned) if run.is_validated else {*returned, *model.returns}
    missing = [name for name in run.request.compared_names if name not in known and name not in MEASURES]
    if not missing:
        return
    metric, source = missing[0], "test" if run.is_validated else "train"
    instead = "`metric`"
    if run.request.is_multi_objective:
        instead = f"`objectives` or `constraints`, such as the measures {', '.join(MEASURES)}"
    message = (
        f"metric {metric!r} was not returned by SubEpochSpec.{source}() of model {model.id}, which returned: "
        f"{', '.join(sorted(returned)) or 'nothing'}. Return {metric!r} for each model, or choose another {instead}"
    )
    model.give_up(Failure(kind=FailureKind.USER_ERROR, message=message))
    run.observe_model(model)


def _train(event: TaskCommitted, run: Run, task: Task, model: Model, workers: Mapping[str, Worker]) -> None:
    key, result = task.key, event.result
    if result.checkpoint is None or key.epoch is None or key.partition is None:
        return
    # Trained from a copy loaded earlier: the previous epoch can no longer be validated.
    for epoch in model.validation.unreadable:
        for validation in map(run.task, run.validation_keys(model, epoch)):
            if validation.state is TaskState.PENDING:  # other partitions of a fold may be validated now
                validation.state = TaskState.FAILED
    model.validation.skip_unreadable()
    attempt = task.attempts[-1]
    sub_epoch = CompletedSubEpoch.of(
        epoch=key.epoch,
        partition=key.partition,
        attempt=attempt,
        result=result,
        checkpoint=result.checkpoint,
    )
    run.add(model, sub_epoch, workers)
    kind = run.trials.similar_models(model) if run.trials.stacks.since is not None else None
    if kind is not None and not model.configs.has_changed:
        run.trials.stacks.observe(StackKey(kind, workers[sub_epoch.worker].device), sub_epoch)
    model.failures.warn(result.warnings)
    if len(task.attempts) == 1:
        # The sub-epoch has all the facts.
        del run.tasks.by_key[event.task]


def _answer(result: TaskResult, run: Run, search: SearchLog, task: Task) -> None:
    if not search.answer(task.key.request or "", result.answer or SearchAnswer()):
        task.reopen()
        message = f"{task.attempts[-1].worker} gave no valid answer to the request"
        search.failures[str(task.key)] = Failure(kind=FailureKind.USER_ERROR, message=message)


def _make(result: TaskResult, run: Run, task: Task, worker: Worker, datasets: Mapping[str, Dataset]) -> None:
    key = task.key
    if run.plan is None or key.split is None or key.partition is None:
        return
    dataset = datasets[run.plan.dataset]
    dataset.rows[key.split, key.partition] = result.rows
    dataset.failed_rows[key.split, key.partition] = result.rows_failed
    if key.split == "train":
        worker.replicas.add((run.plan.dataset, key.partition))
    task.result = result
    if run.kind != "etl":
        # Another worker may need a replica later.
        task.reopen()
        run.scheduling.planned = None
