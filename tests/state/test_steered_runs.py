"""Runs that are resumed after they ended, and late commands."""

from __future__ import annotations

import pytest

from cerebro.contract.events import (
    ClientEvent,
    RunFinished,
    RunRequested,
    RunResumed,
    RunStarted,
    RunStopRequested,
)
from cerebro.contract.tasks.failures import FailureKind
from cerebro.state import RunState, schedule_now
from cerebro.state.reports import state_words
from tests.state.runs import TimedStory
from tests.state.stories import Story, sub_epoch
from tests.state.user_commands import ended, facts, failed, resume, retry, states, stop


# --- Ended runs ---
def test_a_resumed_run_continues_its_active_models() -> None:
    """Models that a user stopped individually stay stopped."""
    story = Story()
    story.fit()
    story.append(
        stop("m01"), RunStopRequested(run="fit-1"), ended("stopped"), RunResumed(run="fit-1", by="bob")
    )
    assert (story.run.state, story.run.clock.ended, story.run.failures.error) == (RunState.RUNNING, 0.0, "")
    assert states(story) == {"m00": "active", "m01": "stopped"}
    assert story.state.active_run() is story.run
    story.train(1, 0)


def test_a_run_stopped_before_planning_is_queued_again() -> None:
    """It still needs a plan."""
    story = Story()
    story.fit()
    request, plan = story.run.request, story.run.plan
    assert plan is not None
    story = Story()
    story.append(RunRequested(run="fit-1", request=request), RunStopRequested(run="fit-1"), ended("stopped"))
    story.append(RunResumed(run="fit-1"))
    assert state_words.run(story.run) == "queued"
    story.append(RunStarted(run="fit-1", plan=plan))
    assert state_words.run(story.run) == "starting"


def test_a_run_failed_by_its_data_stays_failed() -> None:
    """The next model would read the same bad data."""
    story = failed()
    story.fail(sub_epoch(1, 0, "m01"), 0, FailureKind.DATA)
    story.append(ended("failed"))
    before = facts(story)
    story.append(retry(), resume("m01"))
    assert facts(story) == before


def test_the_schedule_clock_stops_while_the_run_has_ended() -> None:
    """The pause between the two halves of a run is neither makespan nor idle time."""
    story = TimedStory()
    story.fit(models=1, partitions=1, epochs=2)
    story.runs(sub_epoch(1, 0), 0, 0.0, 4.0)
    story.report(1)
    story.at(5.0, RunStopRequested(run="fit-1"), ended("stopped"))
    story.at(1005.0, RunResumed(run="fit-1"))
    story.runs(sub_epoch(2, 0), 0, 1006.0, 1010.0)
    found = schedule_now(story.state, story.run, story.zero + 1010.0)
    assert found is not None
    assert (found.makespan_s, found.lower_bound_s, found.idle_s, found.device_s) == (10.0, 8.0, 2.0, 10.0)
    story.report(2)
    assert story.run.scheduling.epochs[-1].makespan_s == 10.0
    assert story.run.scheduling.epochs[-1].idle_s["worker-0"] == 2.0


# --- Late commands ---
@pytest.mark.parametrize(
    "command",
    [
        stop("m01"),
        stop("m99"),
        resume("m00"),
        resume("m01"),
        resume("m99"),
        retry("m00"),
        retry("m01"),
        RunResumed(run="fit-1"),
    ],
    ids=lambda command: f"{command.type}-{getattr(command, 'model', '')}",
)
def test_a_late_command_changes_nothing(command: ClientEvent) -> None:
    """m00 is active, m01 has finished and m99 does not exist. The list still shows the command."""
    story = Story()
    story.fit(epochs=1)
    story.epoch(1, model="m01")
    before = facts(story)
    story.append(command)
    assert facts(story) == before
    assert story.state.commands[-1].is_late


@pytest.mark.parametrize(
    "command", [RunResumed(run="fit-1"), resume(), retry("m01")], ids=lambda command: command.type
)
def test_a_run_is_not_reopened_beside_another_run(command: ClientEvent) -> None:
    """The run requested in between would conflict with it."""
    story = Story()
    story.fit(max_attempts=1)
    story.fail(sub_epoch(1, 0, "m01"), 0, FailureKind.USER_ERROR)
    story.append(ended("stopped"), RunRequested(run="fit-2", request=story.run.request))
    before = facts(story)
    story.append(command)
    assert facts(story) == before
    assert story.state.commands[-1].is_late
    story.append(RunFinished(run="fit-2", outcome="stopped"), command)
    assert story.state.active_run() is story.state.runs["fit-1"]
    assert not story.state.commands[-1].is_late
