"""Scheduler changes, archiving, deletion, and the list of user commands."""

from __future__ import annotations

import pytest

from cerebro.contract.events import (
    DeletionRequested,
    RunRequested,
    RunResumed,
    SchedulerChanged,
)
from cerebro.contract.tasks.failures import FailureKind
from cerebro.errors import IllegalEventError
from cerebro.state import waiting_for
from cerebro.state.reports.timeline import task_attempts
from tests.state.stories import Story, joined, lost, sub_epoch
from tests.state.user_commands import ended, facts, failed, resume, retry, stop


# --- Scheduler, archive, deletion ---
def test_a_changed_scheduler_replaces_the_plan() -> None:
    """The original request stays visible. A run without training has no scheduler."""
    story = Story()
    story.etl()
    story.fit()
    assert (story.run.scheduling.scheduler, story.run.scheduling.has_planner) == ("lrptw", True)
    story.append(SchedulerChanged(run="fit-1", scheduler="my-policy", planner=False, by="ann"))
    assert (
        story.run.scheduling.scheduler,
        story.run.scheduling.has_planner,
        story.run.scheduling.planned,
    ) == ("my-policy", False, None)
    story.append(SchedulerChanged(run="etl-1", scheduler="random"))
    assert story.state.runs["etl-1"].scheduling.scheduler == ""
    assert [command.is_late for command in story.state.commands[-2:]] == [False, True]


def test_an_experiment_is_deleted_only_without_open_runs_and_then_closed() -> None:
    """Neither a new run nor a resumed one is accepted afterwards."""
    story = Story()
    story.fit()
    with pytest.raises(IllegalEventError, match="while fit-1 is running"):
        story.append(DeletionRequested(by="ann"))
    story.append(ended("stopped"), DeletionRequested(by="ann"))
    assert story.state.deletion is not None
    assert story.state.deletion.by == "ann"
    before = facts(story)
    story.append(RunResumed(run="fit-1"), resume(), retry(), DeletionRequested(by="bob"))
    assert facts(story) == before
    with pytest.raises(IllegalEventError, match="being deleted"):
        story.append(RunRequested(run="fit-2", request=story.run.request))


# --- Effects on other parts ---
def test_no_run_waits_for_a_partition_that_only_stopped_models_need() -> None:
    """Only the stopped model needs the missing partition."""
    story = Story()
    story.fit(epochs=1)
    story.append(lost(1))
    story.train(1, 0)
    assert "worker-1" in waiting_for(story.state, story.run)
    story.append(stop("m00"), stop("m01"))
    assert waiting_for(story.state, story.run) == ""
    story.append(joined(1, incarnation="b"))


def test_each_attempt_is_listed_once() -> None:
    """Failed attempts come with their tasks, committed ones with their sub-epochs, each once."""
    story = failed()
    story.append(retry())
    story.train(1, 1)
    story.fail(sub_epoch(1, 0, "m01"), 0, FailureKind.CRASH)
    story.start(sub_epoch(1, 0, "m01"), 0)
    messages = sorted(
        (str(t.key), t.attempt.number, t.attempt.outcome, bool(t.sub_epoch)) for t in task_attempts(story.run)
    )
    assert messages == [
        ("fit-1/train/m00/e1/p0", 1, "committed", True),
        ("fit-1/train/m00/e1/p1", 1, "crash", False),
        ("fit-1/train/m00/e1/p1", 2, "user_error", False),
        ("fit-1/train/m00/e1/p1", 3, "committed", True),
        ("fit-1/train/m01/e1/p0", 1, "crash", False),
        ("fit-1/train/m01/e1/p0", 2, "", False),
    ]
    assert len(list(task_attempts(story.run, "m01"))) == 2
