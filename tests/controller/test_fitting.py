"""The pass of `ETLSpec.fit` over the training rows: before other tasks, once per data set, passed to all tasks."""

from __future__ import annotations

import pytest

from cerebro.contract.events import RunFinished, RunRequested, RunStarted, RunStopRequested
from cerebro.contract.rest import api
from cerebro.contract.runs import EtlRequest
from cerebro.contract.tasks.bodies import EtlTask, FittingTask, TrainTask
from cerebro.contract.tasks.checkpoints import FittedRef
from cerebro.contract.tasks.failures import FailureKind
from cerebro.contract.tasks.results import TaskResult
from cerebro.state import TaskKey
from controller.decisions import tasks
from tests.controller.test_fit_dispatch import RECORD, all_here, core_of
from tests.state.stories import SHA, Story, etl_plan, joined, sub_epoch

FITTED = FittedRef(name="datasets/d/fitted/etl-1-a1.pickle", checksum="xxh3_64:0", size=3)
FITTING = TaskKey(run="etl-1", kind="fitting")


def begun(story: Story, run: str = "etl-1", *, fits: bool = True) -> None:
    story.append(
        RunRequested(run=run, request=EtlRequest(code=SHA, code_fingerprint=SHA, fits=fits)),
        RunStarted(run=run, plan=etl_plan(2, {"train": 10, "valid": 4})),
    )


@pytest.fixture
def story() -> Story:
    """Two workers, and a run with `fit`."""
    story = Story(workers=0)
    for number in range(2):
        story.append(joined(number, partitions=()))
    begun(story)
    return story


def assignments(story: Story, run: str = "etl-1") -> dict[str, api.Assign]:
    core = core_of(story)
    steps = core.decide(all_here(story), core.state.runs[run])
    return {step.task: step for step in steps if isinstance(step, api.Assign)}


def test_rows_wait_for_the_fitting_pass(story: Story) -> None:
    """One task reads the training split; all later tasks receive its result."""
    (step,) = assignments(story).values()
    assert isinstance(step.body, FittingTask)
    assert (step.task, step.devices, step.body.partitions) == ("etl-1/fitting", (), (0, 1))
    story.start(FITTING, 0, ())
    assert assignments(story) == {}
    story.commit(FITTING, 0, TaskResult(rows=20, fitted=FITTED))
    bodies = [step.body for step in assignments(story).values()]
    assert {type(body) for body in bodies} == {EtlTask}
    assert all(isinstance(body, EtlTask) and body.fitted == FITTED for body in bodies)
    for split, rows in (("train", 10), ("valid", 4)):
        for number in range(2):
            key = TaskKey(run="etl-1", kind="etl", split=split, partition=number)
            story.do(key, number, TaskResult(rows=rows))
    assert story.state.runs["etl-1"].is_complete()
    story.append(RunFinished(run="etl-1", outcome="finished"))
    story.fit(models=1)
    body = tasks.body(RECORD, story.state, story.run, sub_epoch(1, 0))
    assert isinstance(body, TrainTask)
    assert body.fitted == FITTED


def test_another_worker_repeats_an_interrupted_fitting_pass(story: Story) -> None:
    """The attempts write separate files."""
    (first,) = assignments(story).values()
    story.fail(FITTING, 0, FailureKind.CRASH, "killed")
    (second,) = assignments(story).values()
    assert (first.attempt, second.attempt) == (1, 2)


def test_an_error_in_fit_fails_the_run(story: Story) -> None:
    """No row can be processed, so the run fails with the error's message."""
    story.fail(FITTING, 0, FailureKind.USER_ERROR, "ETLSpec.fit raised")
    core = core_of(story)
    (step,) = core.decide(all_here(story), core.state.runs["etl-1"])
    assert isinstance(step, api.Note)
    assert isinstance(step.event, RunFinished)
    assert (step.event.outcome, step.event.error) == ("failed", "ETLSpec.fit raised\nTraceback")


@pytest.mark.parametrize("fitted", [FITTED, None])
def test_the_same_data_set_is_fitted_once(story: Story, fitted: FittedRef | None) -> None:
    """A later run uses an interrupted run's result, also if the spec has no `fit`."""
    story.do(FITTING, 0, TaskResult(fitted=fitted))
    assert all(
        isinstance(step.body, EtlTask) and step.body.fitted == fitted for step in assignments(story).values()
    )
    story.append(RunStopRequested(run="etl-1"), RunFinished(run="etl-1", outcome="stopped"))
    begun(story, "etl-2")
    bodies = [step.body for step in assignments(story, "etl-2").values()]
    assert bodies
    assert all(isinstance(body, EtlTask) and body.fitted == fitted for body in bodies)
