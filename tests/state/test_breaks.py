"""Interruptions count neither as makespan nor as idle time."""

from __future__ import annotations

import pytest

from cerebro.contract.events import RunFinished
from cerebro.contract.tasks.failures import FailureKind
from cerebro.state import ScheduleNow, TaskKey, schedule_now
from tests.state.runs import TimedStory
from tests.state.stories import joined, lost, sub_epoch

DOWN_S = 70.0


def interrupted(*, is_noticed_at_once: bool) -> TimedStory:
    """A run with one model whose workers are both lost after 4 s and return 70 s later.

    Worker 0: m00 0-2, revoked 2-4; m00 74-76. The loss is noticed at once or on return.
    """
    story = TimedStory()
    story.fit(models=1, partitions=2, epochs=1)
    story.runs(sub_epoch(1, 0), 0, 0.0, 2.0)
    story.begins(sub_epoch(1, 1), 1, 2.0)
    story.time = story.zero + 3.0
    story.break_off(sub_epoch(1, 1), 1, 1, FailureKind.PREEMPTED, "SIGTERM")
    if is_noticed_at_once:
        story.at(5.0, lost(0), lost(1))
        story.at(4.0 + DOWN_S, joined(0, incarnation="b"), joined(1, incarnation="b"))
    else:
        story.at(4.0 + DOWN_S, lost(0), joined(0, incarnation="b"), lost(1), joined(1, incarnation="b"))
    return story


def now(story: TimedStory, seconds: float) -> ScheduleNow:
    found = schedule_now(story.state, story.run, story.zero + seconds)
    assert found is not None
    return found


@pytest.mark.parametrize("is_noticed_at_once", [True, False])
def test_time_without_workers_does_not_count(is_noticed_at_once: bool) -> None:
    """The break starts with the last work, because idle workers are missed late. It ends when a worker returns."""
    story = interrupted(is_noticed_at_once=is_noticed_at_once)
    assert story.run.clock.breaks == [(story.zero + 4.0, story.zero + 4.0 + DOWN_S)]
    story.runs(sub_epoch(1, 1), 1, 74.0, 76.0)
    story.append(RunFinished(run="fit-1", outcome="finished"))
    found = now(story, 200.0)
    assert (found.makespan_s, found.lower_bound_s, found.gap) == (6.0, 4.0, 0.5)
    # Both workers during the last 2 s, with worker 1 busy.
    assert (found.idle_s, found.device_s) == (2.0, 8.0)
    assert story.run.clock.begun == story.run.clock.started + DOWN_S


def test_waiting_beside_an_idle_worker_counts_as_makespan() -> None:
    """It waits for the lost worker's partition, which is idle time."""
    story = TimedStory()
    story.fit(models=1, partitions=2, epochs=1)
    story.runs(sub_epoch(1, 0), 0, 0.0, 2.0)
    story.at(3.0, lost(1))
    story.at(3.0 + DOWN_S, joined(1, incarnation="b"))
    assert story.run.clock.breaks == []
    assert now(story, 80.0).makespan_s == 80.0


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_search_request_without_training_workers_does_not_end_a_break(*, is_answered: bool) -> None:
    """An ETL worker answers a user's own procedure while no training worker is alive."""
    question = TaskKey(run="fit-1", kind="search", request="actions-0")
    story = TimedStory(workers=3)
    story.fit(models=1, partitions=2, epochs=1)
    story.runs(sub_epoch(1, 0), 0, 0.0, 4.0)
    story.at(5.0, lost(0), lost(1))
    story.time = story.zero + 29.0
    story.start(question, 2, ())
    if is_answered:
        story.time = story.zero + 39.0
        story.break_off(question, 2, 1, FailureKind.USER_ERROR, "it raises")
    story.at(50.0, joined(0, incarnation="b"), joined(1, incarnation="b"))
    assert story.run.clock.breaks == [(story.zero + 4.0, story.zero + 50.0)]
