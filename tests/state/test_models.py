"""State of models: means, best epochs, required checkpoints and re-executed sub-epochs."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.failures import FailureKind
from cerebro.contract.tasks.results import TaskResult
from cerebro.state import ModelState, TaskKey, TaskState
from cerebro.state.models.completed_sub_epoch import CompletedSubEpoch
from cerebro.state.models.model import Model
from cerebro.state.tasks.failure_events import MAX_REOPENED
from cerebro.state.tasks.task import Attempt
from tests.state.stories import Story, sub_epoch, validation


def model_of(
    metrics: list[list[dict[str, float]]], *, rows: list[list[int]] | None = None, epochs: int | None = None
) -> Model:
    """Return a model with sub-epochs: metrics (and rows) per epoch and partition."""
    size = len(metrics[0])
    model = Model(id="m00", hyperparams={}, epochs=epochs or len(metrics), partitions=tuple(range(size)))
    for epoch, sub_epochs in enumerate(metrics, start=1):
        for partition, values in enumerate(sub_epochs):
            result = TaskResult(rows=rows[epoch - 1][partition] if rows else 1, metrics=values)
            model.add(
                CompletedSubEpoch.of(
                    epoch=epoch,
                    partition=partition,
                    attempt=Attempt(number=1, worker="worker-0", assigned=0.0),
                    result=result,
                    checkpoint=CheckpointRef(name=f"u{len(model.sub_epochs)}", checksum="-", size=1),
                )
            )
    return model


# --- Means ---


@settings(deadline=None)
@given(sub_epochs=st.lists(st.tuples(st.integers(1, 1000), st.floats(-1e6, 1e6)), min_size=1, max_size=8))
def test_a_weighted_mean_lies_between_its_values(sub_epochs: list[tuple[int, float]]) -> None:
    """It equals the mean over all rows."""
    model = model_of([[{"x": value} for _, value in sub_epochs]], rows=[[rows for rows, _ in sub_epochs]])
    mean = model.training_metrics(1)["x"]
    flat = sum(rows * value for rows, value in sub_epochs) / sum(rows for rows, _ in sub_epochs)
    assert mean == pytest.approx(flat)
    values = [value for _, value in sub_epochs]
    assert min(values) - 1e-6 <= mean <= max(values) + 1e-6


# --- Best epoch ---


@pytest.mark.parametrize(("mode", "best"), [("min", 2), ("max", 3)])
def test_the_mode_decides_the_best_epoch(mode: str, best: int) -> None:
    """The metric's name is not used to guess the direction."""
    model = model_of([[{"accuracy": value}] for value in (0.5, 0.2, 0.9, 0.3)])
    assert model.best_epoch("accuracy", mode, validated=False) == best


def test_the_best_epoch_needs_a_finite_validation() -> None:
    """Training values do not replace a missing validation, and NaN never wins."""
    model = model_of([[{"loss": 3.0}], [{"loss": 2.0}], [{"loss": 1.0}]])
    model.validate(1, {"loss": 0.5})
    model.validate(2, {"loss": float("nan")})
    assert model.best_epoch("loss", "min", validated=True) == 1
    assert model.best_epoch("loss", "max", validated=True) == 1
    assert model.best_epoch("accuracy", "max", validated=True) is None


@pytest.mark.parametrize(("mode", "best"), [("min", "m00"), ("max", "m01")])
def test_the_best_model_is_the_one_with_the_best_epoch(mode: Literal["min", "max"], best: str) -> None:
    """A failed model counts with its completed epochs."""
    story = Story()
    story.fit(models=3, mode=mode)
    story.epoch(1, model="m00", loss=1.0)
    story.epoch(1, model="m01", loss=9.0)
    story.fail(sub_epoch(2, 0, "m01"), 0, FailureKind.NON_FINITE)
    model = story.run.best_model()
    assert model is not None
    assert model.id == best


# --- Checkpoints ---


@pytest.mark.parametrize(("mode", "best"), [("min", "u3"), ("max", "u1")])
def test_the_checkpoint_of_the_best_epoch_is_needed(mode: str, best: str) -> None:
    """The metric's direction determines the epoch."""
    values = (9.0, 1.0, 5.0, 5.0)
    model = model_of([[{"loss": value}, {"loss": value}] for value in values])
    assert model.needed_checkpoints("loss", mode, validated=False) == {best, "u6", "u7"}


@settings(deadline=None)
@given(
    values=st.lists(st.floats(-10, 10), min_size=1, max_size=5),
    partitions=st.integers(1, 3),
    popped=st.integers(0, 2),
    mode=st.sampled_from(["min", "max"]),
    validated=st.sets(st.integers(1, 5)),
    is_validated=st.booleans(),
)
def test_checkpoints_that_may_be_read_are_kept(
    values: list[float], partitions: int, popped: int, mode: str, validated: set[int], is_validated: bool
) -> None:
    """These are the last two, each epoch that awaits validation, and the best epoch."""
    model = model_of([[{"loss": value}] * partitions for value in values])
    for _ in range(min(popped, len(model.sub_epochs) - 1)):
        model.roll_back()
    for epoch in validated.intersection(range(1, model.completed_epochs + 1)):
        model.validate(epoch, {"loss": 1.0 / epoch})
    needed = model.needed_checkpoints("loss", mode, validated=is_validated)
    assert {completed.checkpoint.name for completed in model.sub_epochs[-2:]} <= needed
    best = model.best_epoch("loss", mode, validated=is_validated)
    for epoch in range(1, model.completed_epochs + 1):
        checkpoint = model.epoch_checkpoint(epoch)
        assert checkpoint is not None
        if epoch == best or (is_validated and epoch not in model.validation.metrics):
            assert checkpoint.name in needed
    assert len(needed) <= 3 + (model.completed_epochs if is_validated else 0)


# --- Progress ---


def test_epoch_and_remaining_partitions_follow_from_completed_sub_epochs() -> None:
    """No other record stores them."""
    story = Story()
    story.fit()
    assert (story.model().epoch, story.model().remaining) == (1, (0, 1))
    story.train(1, 1)
    assert (story.model().epoch, story.model().remaining) == (1, (0,))
    story.train(1, 0)
    assert (story.model().epoch, story.model().remaining) == (2, (0, 1))
    story.epoch(2)
    assert (story.model().epoch, story.model().remaining) == (2, ())
    assert story.model().state is ModelState.FINISHED


def test_a_task_released_by_a_worker_shutdown_is_no_failure() -> None:
    """The attempt is revoked with the worker's message; the task has no failure and gets priority."""
    story = Story()
    story.fit()
    story.fail(sub_epoch(1, 0), 0, FailureKind.PREEMPTED, "SIGTERM: worker-0 was asked to end")
    task = story.run.task(sub_epoch(1, 0))
    assert task.attempts[0].outcome == "revoked: SIGTERM: worker-0 was asked to end"
    assert (task.state, task.failures, task.failure) == (TaskState.PENDING, 0, None)
    assert task.is_interrupted
    assert story.state.workers["worker-0"].is_ending


# --- Lost checkpoints ---


def test_a_lost_checkpoint_reopens_the_previous_sub_epoch() -> None:
    """Its sub-epoch is removed and the number increases; the sub-epoch that found the loss is not charged."""
    story = Story()
    story.fit()
    story.train(1, 0)
    story.fail(sub_epoch(1, 1), 1, FailureKind.CHECKPOINT)
    assert not story.model().sub_epochs
    assert story.run.task(sub_epoch(1, 0)).state is TaskState.PENDING
    assert story.run.task(sub_epoch(1, 1)).failures == 0
    story.train(1, 0, loss=2.0)
    story.train(1, 1)
    assert [completed.attempt for completed in story.model().sub_epochs] == [2, 2]
    assert story.model().epoch_checkpoint(1) == story.model().sub_epochs[-1].checkpoint.ref()


def test_a_model_fails_after_losing_its_checkpoint_too_often() -> None:
    """A volume that loses all files must not keep a run alive forever; other models are unaffected."""
    story = Story()
    story.fit()
    for _ in range(MAX_REOPENED):
        story.train(1, 0)
        story.fail(sub_epoch(1, 1), 1, FailureKind.CHECKPOINT)
        assert story.model().state is ModelState.ACTIVE
    story.train(1, 0)
    story.fail(sub_epoch(1, 1), 1, FailureKind.CHECKPOINT)
    assert story.model().state is ModelState.FAILED
    assert story.model("m01").state is ModelState.ACTIVE


def test_a_validation_without_checkpoint_reopens_the_last_sub_epoch() -> None:
    """No other task would notice the loss of the final checkpoint."""
    story = Story()
    story.fit(validated=True, epochs=1)
    story.epoch(1)
    story.fail(validation(1), 0, FailureKind.CHECKPOINT)
    assert story.model().remaining == (1,)
    story.train(1, 1)
    story.validate(1)
    assert story.model().state is ModelState.FINISHED


def test_a_lost_checkpoint_of_an_older_epoch_fails_only_its_validation() -> None:
    """Training has continued past it, so the model loses only one validation."""
    story = Story()
    story.fit(validated=True, max_attempts=2)
    story.epoch(1)
    story.epoch(2)
    for _ in range(2):
        story.fail(validation(1), 0, FailureKind.CHECKPOINT)
    assert story.run.task(validation(1)).state is TaskState.FAILED
    story.validate(2)
    assert story.model().state is ModelState.FINISHED
    assert len(story.model().sub_epochs) == 4


# --- Keys ---


@pytest.mark.parametrize(
    "text",
    [
        "etl-1/etl/train/p0",
        "fit-1/train/m03/e2/p1",
        "fit-1/valid/m03/e2",
        "test-1/test/m03",
        "test-1/test/m03/p1",
        "p-1/predict/m03/p10",
    ],
)
def test_task_keys_round_trip_as_text(text: str) -> None:
    """`parse` is the inverse of `str`."""
    assert str(TaskKey.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fit-1",
        "fit-1/train/m03",
        "fit-1/train/m03/2/p1",
        "fit-1/dance/m03",
        "fit-1/valid/m03/e",
        "a/etl/x/p0/y",
    ],
)
def test_invalid_task_keys_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        TaskKey.parse(text)
