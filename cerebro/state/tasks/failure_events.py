"""Effects of a failed attempt on its model and run; `cerebro.state.tasks.task` has the effects on the task."""

from __future__ import annotations

from dataclasses import replace

from cerebro.contract.events import TaskFailed, TaskRevoked
from cerebro.contract.tasks.bodies import MEASURING
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.state.models import parallel_plans
from cerebro.state.models.model import Model
from cerebro.state.runs.run import Run
from cerebro.state.tasks import measurements, verifications
from cerebro.state.tasks.task import Task, TaskState

MAX_REOPENED = 3
"""Losses of one sub-epoch's checkpoint before its model fails."""


MAX_VOLUME_FAILURES = 3
"""Volume failures of a task, on different workers if possible, before the run pauses.

After a pause, one is enough until a task commits."""
MAX_DEATHS = 2
"""Attempts that may die on one savepoint before the sub-epoch restarts from its beginning."""


def judge_savepoint(event: TaskFailed | TaskRevoked, model: Model) -> bool:
    """Discard a savepoint that makes attempts fail; call it when a running attempt of `model` ends.

    Returns:
        True if the sub-epoch deserves a retry from its beginning: user code raised after continuing from the savepoint,
        which may be the cause.
    """
    saved = model.checkpoints.saved
    if saved is None or saved.task != event.task:
        return False
    kind = event.failure.kind if isinstance(event, TaskFailed) else event.loss
    effect = kind.traits.savepoint if kind else "keep"
    went_on = event.attempt > saved.attempt
    if effect == "discard" or (went_on and effect == "restart"):
        model.checkpoints.saved = None
    elif went_on and effect == "discard_if_repeated":
        deaths = saved.deaths + 1
        model.checkpoints.saved = replace(saved, deaths=deaths) if deaths < MAX_DEATHS else None
    return went_on and effect == "restart"


def fail(failure: Failure, run: Run, task: Task, model: Model | None) -> None:
    """Apply the failure of an attempt; call it after the task's own update.

    Args:
        model: the model that `task` trains or validates, if any.
    """
    is_of_volume = failure.is_of_volume
    if task.key.kind == "verify":
        verifications.observe_failure(
            run.verifications, task.key, failure, is_final=task.state is TaskState.FAILED
        )
    elif task.key.kind in MEASURING and not is_of_volume:
        measurements.fail(failure, run, task)
    elif task.key.kind == "search" and not is_of_volume:
        if task.state is TaskState.FAILED and run.search is not None:
            run.search.failures[str(task.key)] = failure
    elif task.key.kind == "etl" and run.kind != "etl":
        _fail_making(failure, run, task)
    elif is_of_volume:
        is_known = failure.kind is FailureKind.STORAGE_FULL or run.pause.volume_pauses > 0
        if is_known or task.volume_failures % MAX_VOLUME_FAILURES == 0:
            run.pause.volume_failure = failure
    elif failure.kind is FailureKind.CHECKPOINT and model:
        _lose_checkpoint(failure, run, task, model)
    elif model is None and (failure.kind is FailureKind.CHECKPOINT or task.state is TaskState.FAILED):
        # A test or prediction cannot have the sub-epoch recomputed: its fit run has ended.
        run.failures.fatal = failure
    elif failure.kind.traits.fails_run and task.state is TaskState.FAILED:
        run.failures.fatal = failure  # unless a failure rule retries it elsewhere
    elif task.state is TaskState.FAILED and model:
        model.give_up(parallel_plans.final(failure, run, model))


def _fail_making(failure: Failure, run: Run, task: Task) -> None:
    """Count a failed replica copy. The controller knows whether the run can continue without it.

    Another worker may have a good volume. If the run needs the partition, the controller pauses it and then retries.
    """
    if failure.is_of_volume:
        task.failures += 1
        if task.failures >= run.max_attempts:
            task.state = TaskState.FAILED


def _lose_checkpoint(failure: Failure, run: Run, task: Task, model: Model) -> None:
    """Undo the sub-epoch that wrote a model's unreadable newest checkpoint.

    A validation may do this only for a trained model. While sub-epochs remain, the next one detects it too, and
    undoing a sub-epoch here could cross an assignment on its way.
    """
    if task.key.kind == "valid":
        epoch = task.key.epoch or 0
        if model.progress.trained == epoch * len(model.partitions) and not model.is_trained:
            model.validation.unreadable.add(epoch)
            return
        newest = model.sub_epochs[-1].ended if model.sub_epochs else 0.0
        is_intact = (
            model.progress.trained == epoch * len(model.partitions) and task.attempts[-1].assigned >= newest
        )
        if model.busy or epoch < model.epochs or not is_intact:
            task.failures += 1
            if task.failures >= run.max_attempts:
                task.state = TaskState.FAILED
                model.validation.skipped.add(epoch)
                run.settle(model)
            return
    sub_epoch = len(model.sub_epochs) - 1
    model.checkpoints.losses[sub_epoch] += 1
    if sub_epoch < model.lineage.sub_epochs and sub_epoch >= 0:
        parent = f"a checkpoint of {model.lineage.parent} that cannot be read"
        message = f"{model.id} goes on from {parent}: clone it once more. "
        model.give_up(failure.model_copy(update={"message": message + failure.message}))
        return
    if sub_epoch < 0 or model.checkpoints.losses[sub_epoch] > MAX_REOPENED:
        model.give_up(failure)
        return
    there = run.kept_checkpoints(model)
    _roll_back(failure, run, model)
    if model.is_pruned:
        # No sub-epoch can start from a removed checkpoint: go back to an available one.
        while (
            len(model.sub_epochs) > model.lineage.sub_epochs
            and model.sub_epochs[-1].checkpoint.name not in there
        ):
            if not _roll_back(failure, run, model):
                return


def _roll_back(failure: Failure, run: Run, model: Model) -> bool:
    """Undo the newest sub-epoch, or fail the model if it is compacted."""
    if model.can_roll_back:
        run.roll_back(model)
        return True
    message = (
        f"none of the checkpoints of {model.id} since epoch {model.compacted_epochs} can be read, and only the log has "
        "the sub-epochs before: clone it at its best epoch, or train a new model. "
    )
    model.give_up(failure.model_copy(update={"message": message + failure.message}))
    return False
