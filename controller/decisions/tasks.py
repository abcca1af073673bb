"""Task bodies: the parameters of a task for its worker, filled in from the state. Pure."""

from __future__ import annotations

from typing import Any

from cerebro.contract.parallel_plans import SINGLE, ParallelPlan
from cerebro.contract.records import ExperimentRecord, Hyperparameters
from cerebro.contract.runs import EtlPlan, EtlRequest, EvaluatePlan, FitPlan, FitRequest
from cerebro.contract.search import Above, Below
from cerebro.contract.tasks.bodies import (
    EtlTask,
    EvaluateTask,
    FittingTask,
    PredictTask,
    TaskBody,
    TrainTask,
    Validation,
    VerificationTask,
)
from cerebro.contract.tasks.checkpoints import Savepoint
from cerebro.contract.tasks.gangs import Gang
from cerebro.errors import IllegalEventError
from cerebro.scheduling.policies import is_by_priority_score
from cerebro.state import ExperimentState, Model, Run, TaskKey, Worker, position_of
from cerebro.state.runs.concurrent_runs import epochs_read
from cerebro.state.tasks.verifications import Verification, is_exact


def body(
    record: ExperimentRecord,
    state: ExperimentState,
    run: Run,
    key: TaskKey,
    parallel_plan: ParallelPlan | None = None,
    *,
    gang: Gang | None = None,
) -> TaskBody:
    """Return the body of a task of a started run.

    Args:
        parallel_plan: plan of a sub-epoch.
        gang: gang that trains the sub-epoch, if any.
    """
    if key.kind == "fitting":
        return _fitting(record, run, key)
    body: EtlTask | TrainTask | EvaluateTask | PredictTask
    if key.kind == "etl":
        body = _etl(record, state, run, key)
    elif key.kind == "train":
        body = _train(record, state, run, key, parallel_plan).model_copy(update={"gang": gang})
    elif key.kind == "valid":
        body = _valid(record, state, run, key)
    else:
        body = _evaluate(record, state, run, key)
    dataset = state.datasets.get(body.dataset)
    return (
        body
        if dataset is None or dataset.fitted is None
        else body.model_copy(update={"fitted": dataset.fitted})
    )


def _fitting(record: ExperimentRecord, run: Run, key: TaskKey) -> FittingTask:
    if not isinstance(run.plan, EtlPlan) or not isinstance(run.request, EtlRequest):
        raise IllegalEventError(f"{key} belongs to no ETL run that has started")
    return FittingTask(
        key=str(key),
        experiment=record.name,
        dataset=run.plan.dataset,
        partitions=tuple(part.partition for part in run.plan.splits.get("train", ())),
        code=run.request.code,
        archive=record.archive,
        locators=record.locators,
        rules=run.request.failure_rules,
    )


def _etl(record: ExperimentRecord, state: ExperimentState, run: Run, key: TaskKey) -> EtlTask:
    # Other runs make partitions with the code of the data set's ETL run.
    etl_request = state.etl_request(run.plan.dataset) if run.plan else None
    request = run.request if isinstance(run.request, EtlRequest) else etl_request
    if run.plan is None or request is None:
        raise IllegalEventError(f"{key} belongs to no ETL run, and none is known that made its data set")
    if key.split is None or key.partition is None:
        raise IllegalEventError(f"{key} names no partition")
    return EtlTask(
        key=str(key),
        experiment=record.name,
        dataset=run.plan.dataset,
        split=key.split,
        partition=key.partition,
        code=request.code,
        archive=record.archive,
        locators=record.locators,
        max_failed=request.max_failed,
        rules=request.failure_rules,
    )


def _train(
    record: ExperimentRecord,
    state: ExperimentState,
    run: Run,
    key: TaskKey,
    parallel_plan: ParallelPlan | None,
) -> TrainTask:
    if not isinstance(run.request, FitRequest) or not isinstance(run.plan, FitPlan):
        raise IllegalEventError(f"{key} belongs to no fit run")
    if key.epoch is None or key.partition is None:
        raise IllegalEventError(f"{key} names no sub-epoch")
    model = run.models[key.model or ""]
    newest = model.sub_epochs[-1].checkpoint.ref() if model.sub_epochs else None
    config = model.configs.versions[model.version_for(str(key))]
    return TrainTask(
        **_model_fields(record, state, run, key, config.hyperparams),
        epoch=key.epoch,
        partition=key.partition,
        sub_epoch=len(model.sub_epochs),
        position=position_of(model, run.plan.partitions, len(model.sub_epochs), config),
        checkpoint=newest,
        savepoint=_savepoint(run, model, key, parallel_plan),
        parallel_plan=parallel_plan,
        with_curve=is_by_priority_score(run.scheduling.scheduler),
        **_measuring(run.request, run, model, key.epoch),
        validation=_validation(model, max((n for n in model.validation.metrics if n < key.epoch), default=0)),
        has_shared_order=run.request.has_shared_order,
        keep=tuple(sorted(run.kept_checkpoints(model) | _evaluated(state, run, model))),
    )


def verification(
    record: ExperimentRecord, state: ExperimentState, run: Run, found: Verification, worker: Worker
) -> VerificationTask:
    """Return the next verification of a sub-epoch, for a worker."""
    key, model, sub_epoch = found.next_key, run.models[found.sub_epoch.model or ""], found.completed
    if not isinstance(run.plan, FitPlan):
        raise IllegalEventError(f"{key} belongs to no fit run")
    dataset = state.datasets.get(run.plan.dataset)
    needed = run.kept_checkpoints(model, but=found) | _evaluated(state, run, model)
    return VerificationTask(
        **_model_fields(record, state, run, key, found.hyperparams),
        epoch=sub_epoch.epoch,
        partition=sub_epoch.partition,
        sub_epoch=found.number,
        position=position_of(model, run.plan.partitions, found.number),
        checkpoint=found.start_checkpoint,
        validation=_validation(model, sub_epoch.validated),
        expected=sub_epoch.checkpoint.ref(),
        metrics=sub_epoch.returned.metrics,
        threads=sub_epoch.cores,
        is_exact=is_exact(found, worker),
        has_shared_order=run.fit_request.has_shared_order,
        spare=tuple(sorted(found.files - needed)),
        fitted=dataset.fitted if dataset is not None else None,
    )


def _measuring(request: FitRequest, run: Run, model: Model, epoch: int) -> dict[str, Any]:
    """Return the requirements on a sub-epoch's metrics.

    A metric that a model has never returned is not required here: it is probably misspelt, which is reported
    elsewhere.
    """
    rules = request.search.stop if request.search is not None else ()
    read = {*request.compared_names, *(rule.metric for rule in rules if isinstance(rule, Above | Below))}
    known = model.returns if model.sub_epochs and not run.is_validated else ()
    return {"merges": model.returned_in(epoch), "needs": tuple(sorted(read.intersection(known)))}


def _validation(model: Model, epoch: int) -> Validation | None:
    metrics = model.validation.metrics.get(epoch)
    return None if metrics is None else Validation(epoch=epoch, metrics=metrics)


def _evaluated(state: ExperimentState, run: Run, model: Model) -> set[str]:
    """Return names of checkpoints that open tests and predictions will read; training may continue past them."""
    epochs = epochs_read(state.runs, run, model)
    return {found.name for epoch in epochs if (found := model.epoch_checkpoint(epoch)) is not None}


def _savepoint(run: Run, model: Model, key: TaskKey, parallel_plan: ParallelPlan | None) -> Savepoint | None:
    """Return the savepoint of the sub-epoch, if as many ranks wrote it as will continue it."""
    saved = model.checkpoints.saved
    if saved is None or saved.task != str(key):
        return None
    by = next(each.parallel_plan for each in run.task(key).attempts if each.number == saved.attempt)
    return saved.savepoint if (by or SINGLE).ranks == (parallel_plan or SINGLE).ranks else None


def _valid(record: ExperimentRecord, state: ExperimentState, run: Run, key: TaskKey) -> EvaluateTask:
    if not isinstance(run.plan, FitPlan) or key.epoch is None:
        raise IllegalEventError(f"{key} belongs to no fit run")
    model = run.models[key.model or ""]
    checkpoint = model.epoch_checkpoint(key.epoch)
    if checkpoint is None:
        raise IllegalEventError(f"{key}: the epoch is not complete")
    return EvaluateTask(
        **_model_fields(record, state, run, key, model.hyperparams_at(key.epoch)),
        kind="valid",
        epoch=key.epoch,
        split="valid" if key.partition is None else "train",
        partitions=run.plan.valid_partitions if key.partition is None else (key.partition,),
        checkpoint=checkpoint,
    )


def _evaluate(
    record: ExperimentRecord, state: ExperimentState, run: Run, key: TaskKey
) -> EvaluateTask | PredictTask:
    if not isinstance(run.plan, EvaluatePlan) or run.request.kind not in ("test", "predict"):
        raise IllegalEventError(f"{key} belongs to no test or prediction run")
    if key.model is None or (key.partition is None and not run.plan.is_whole):
        raise IllegalEventError(f"{key} names no model and partition")
    fit = state.runs[run.plan.fit]
    epoch = run.plan.models[key.model]
    checkpoint = fit.models[key.model].epoch_checkpoint(epoch)
    if checkpoint is None:
        raise IllegalEventError(f"{key}: epoch {epoch} of {key.model} has no checkpoint")
    fields = _model_fields(record, state, fit, key, fit.models[key.model].hyperparams_at(epoch))
    where: dict[str, Any] = {
        "epoch": epoch,
        "split": run.request.split,
        # Sorted like the split's rows, so the metrics do not depend on the number of workers.
        "partitions": tuple(sorted(run.plan.partitions)) if key.partition is None else (key.partition,),
        "checkpoint": checkpoint,
    }
    if run.request.kind == "test":
        return EvaluateTask(**fields, kind="test", **where)
    output = f"predictions/{record.name}/{run.id}/{key.model}-{key.partition:04d}.arrow"
    return PredictTask(**fields, **where, output=output)


def _model_fields(
    record: ExperimentRecord,
    state: ExperimentState,
    fit: Run,
    key: TaskKey,
    hyperparams: Hyperparameters,
) -> dict[str, Any]:
    run = state.runs[key.run]
    if not isinstance(fit.request, FitRequest) or fit.plan is None or run.plan is None:
        raise IllegalEventError(f"{fit.id} is not a fit run that has started")
    return {
        "key": str(key),
        "experiment": record.name,
        "run": run.id,
        "model": key.model,
        "hyperparams": hyperparams,
        "code": fit.request.code,
        "archive": record.archive,
        "misc": record.locators.misc,
        "dataset": run.plan.dataset,
        "seed": fit.models[key.model or ""].training_seed(fit.request.seed),
        "hang_timeout_s": fit.request.hang_timeout_s,
        "rules": fit.request.failure_rules,
    }
