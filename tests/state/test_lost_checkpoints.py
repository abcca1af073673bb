"""Checkpoints that a validation, test or prediction cannot read: re-execution or failure."""

from __future__ import annotations

from cerebro.contract.events import RunFinished, RunRequested, RunStarted
from cerebro.contract.records import ExperimentRecord, Locator, Locators
from cerebro.contract.runs import EvaluatePlan, EvaluateRequest
from cerebro.contract.tasks.failures import FailureKind
from cerebro.state import ModelState, TaskKey
from controller.decisions.decide import decide
from controller.decisions.fit_dispatch import FitDispatch
from controller.scaling.cluster_snapshot import ClusterSnapshot, WorkerView
from tests.state.stories import DATASET, Story, sub_epoch, validation

RECORD = ExperimentRecord(name="one", locators=Locators(train=Locator(metadata="train.csv")))


def decided(story: Story) -> list[str]:
    """Return the controller's next decisions as text."""
    workers = {
        name: WorkerView(
            incarnation=worker.incarnation,
            weight=1.0,
            kinds=tuple(worker.kinds),
            replicas=(),
        )
        for name, worker in story.state.workers.items()
    }
    fits = [run for run in story.state.runs.values() if run.is_open and run.models]
    board = FitDispatch.of(story.state, fits[0]) if fits else None
    (run,) = story.state.going_on()
    return [str(step) for step in decide(RECORD, story.state, run, ClusterSnapshot(workers=workers), board)]


def between_epochs() -> Story:
    """One model after its first of two epochs, with an unreadable last checkpoint."""
    story = Story()
    story.fit(models=1, validated=True)
    story.epoch(1)
    story.fail(validation(1), 0, FailureKind.CHECKPOINT)
    return story


def test_a_validation_runs_after_the_lost_sub_epoch_is_re_executed() -> None:
    """The next sub-epoch reads the same damaged checkpoint, so the previous sub-epoch runs again."""
    story = between_epochs()
    story.fail(sub_epoch(2, 0), 0, FailureKind.CHECKPOINT)
    assert story.model().remaining == (1,)
    story.train(1, 1)
    assert any(str(validation(1)) in step for step in decided(story))
    story.validate(1)
    story.epoch(2)
    story.validate(2)
    assert sorted(story.model().validation.metrics) == [1, 2]
    assert story.model().state is ModelState.FINISHED


def test_a_checkpoint_error_in_the_first_sub_epoch_fails_the_model() -> None:
    """A first sub-epoch reads no checkpoint, so this is an error of user code."""
    story = Story()
    story.fit()
    story.fail(sub_epoch(1, 0), 0, FailureKind.CHECKPOINT)
    assert story.model().state is ModelState.FAILED


def test_a_test_run_fails_if_its_checkpoint_is_damaged() -> None:
    """Its fit run has ended, so no sub-epoch can run again. The message suggests a fix."""
    story = Story()
    story.fit(models=1, epochs=1)
    story.epoch(1)
    story.append(
        RunFinished(run="fit-1", outcome="finished"),
        RunRequested(run="test-1", request=EvaluateRequest(kind="test", fit="fit-1", split="test")),
        RunStarted(
            run="test-1",
            plan=EvaluatePlan(
                kind="test", dataset=DATASET, fit="fit-1", models={"m00": 1}, partitions={0: 4}
            ),
        ),
    )
    key = TaskKey(run="test-1", kind="test", model="m00", partition=0)
    story.fail(key, 0, FailureKind.CHECKPOINT, "checkpoint u1 has another checksum")
    (step,) = decided(story)
    assert "outcome='failed'" in step
    assert "checkpoint u1 has another checksum. Choose another model" in step
    assert "train again with run_fit" in step
