"""Validations of a fold with several partitions, some of which cannot read the checkpoint."""

from __future__ import annotations

from cerebro.contract.events import RunRequested, RunStarted
from cerebro.contract.records import Hyperparameters
from cerebro.contract.runs import FitPlan, FitRequest
from cerebro.contract.tasks.failures import FailureKind
from cerebro.contract.tasks.results import TaskResult
from cerebro.state import ModelState, TaskKey
from cerebro.state.runs.folds import models_of
from tests.state.stories import DATASET, SHA, Story

MODEL = "m00-f1"
"""It trains on partitions 1 and 3, and validates on 0 and 2."""


def validation(epoch: int, partition: int) -> TaskKey:
    return TaskKey(run="fit-1", kind="valid", model=MODEL, epoch=epoch, partition=partition)


def cross_validation(epochs: int) -> Story:
    """Two folds of two partitions; the first model has trained one epoch."""
    story = Story(workers=4)
    story.etl(workers=4, splits={"train": 10})
    models: dict[str, Hyperparameters] = {"m00": {"batch_size": 1}}
    request = FitRequest(
        code=SHA, models=tuple(models.values()), epochs=epochs, metric="loss", mode="min", folds=2
    )
    plan = FitPlan(
        dataset=DATASET,
        models=models_of(models, 2),
        partitions=dict.fromkeys(range(4), 10),
        folds=((0, 2), (1, 3)),
    )
    story.append(RunRequested(run="fit-1", request=request), RunStarted(run="fit-1", plan=plan))
    for partition in (1, 3):
        story.train(1, partition, model=MODEL)
    return story


def test_a_validation_that_runs_may_end_after_its_epoch_was_skipped() -> None:
    """Training goes on from a copy, so the epoch has no value; the log accepts the other partition's commit."""
    story = cross_validation(epochs=2)
    story.assign(validation(1, 2), 2)
    story.fail(validation(1, 0), 0, FailureKind.CHECKPOINT)
    story.train(2, 1, model=MODEL)
    story.start_assigned(validation(1, 2), 2)
    story.commit(validation(1, 2), 2, TaskResult(rows=10, metrics={"loss": 0.5}))
    found = story.model(MODEL).validation
    assert (found.skipped, found.metrics) == ({1}, {})


def test_one_unreadable_checkpoint_undoes_one_sub_epoch() -> None:
    """Both partitions report the same file."""
    story = cross_validation(epochs=1)
    attempts = {partition: story.start(validation(1, partition), partition) for partition in (0, 2)}
    trained = []
    for partition, attempt in attempts.items():
        story.break_off(validation(1, partition), partition, attempt, FailureKind.CHECKPOINT)
        trained.append(story.model(MODEL).progress.trained)
    assert trained == [1, 1]


def test_a_late_report_leaves_the_new_checkpoint_alone() -> None:
    """The first report had the checkpoint written again; the second one is about the old file."""
    story = cross_validation(epochs=1)
    attempts = {partition: story.start(validation(1, partition), partition) for partition in (0, 2)}
    story.break_off(validation(1, 0), 0, attempts[0], FailureKind.CHECKPOINT)
    (lost,) = {1, 3} - {each.partition for each in story.model(MODEL).sub_epochs}
    story.train(1, lost, model=MODEL)
    story.break_off(validation(1, 2), 2, attempts[2], FailureKind.CHECKPOINT)
    assert story.model(MODEL).progress.trained == 2
    for partition in (0, 2):
        story.do(validation(1, partition), partition, TaskResult(rows=10, metrics={"loss": 0.5}))
    assert story.model(MODEL).state is ModelState.FINISHED
