"""Tasks move by their table of transitions; what a failure costs depends on whose fault it was."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from cerebro.contract.events import (
    RunPaused,
    TaskAssigned,
    TaskCommitted,
    TaskFailed,
    TaskRevoked,
    TaskStarted,
)
from cerebro.contract.tasks import CheckpointRef, Failure, FailureKind, TaskResult
from cerebro.errors import IllegalEventError
from cerebro.state import ModelState, TaskState
from cerebro.state.tasks import TRANSITIONS as TASK_TRANSITIONS
from tests.state.stories import Story, unit

TASK_EVENTS = ["TaskAssigned", "TaskStarted", "TaskCommitted", "TaskFailed", "TaskRevoked"]


def task_in(state: TaskState) -> Story:
    """A story whose first unit is in a state."""
    story, key = Story(), unit(1, 0)
    story.fit()
    if state is TaskState.ASSIGNED:
        story.assign(key, 0)
    elif state is TaskState.RUNNING:
        story.start(key, 0)
    elif state is TaskState.COMMITTED:
        story.train(1, 0)
    elif state is TaskState.FAILED:
        story.fail(key, 0, FailureKind.USER_ERROR)
    assert story.run.task(key).state is state
    return story


@pytest.mark.parametrize("state", list(TaskState))
@pytest.mark.parametrize("kind", TASK_EVENTS)
def test_tasks_move_by_the_table_and_no_other_way(state: TaskState, kind: str) -> None:
    """Each pair of state and event that the table lacks is refused and changes nothing."""
    story, key = task_in(state), unit(1, 0)
    attempt = story.run.task(key).attempt + (kind == "TaskAssigned")
    named = {"task": str(key), "attempt": attempt, "worker": "worker-0"}
    extras: dict[str, dict[str, Any]] = {
        "TaskCommitted": {"result": TaskResult(checkpoint=CheckpointRef(name="c", checksum="-", size=1))},
        "TaskFailed": {"failure": Failure(kind=FailureKind.CRASH, message="killed")},
        "TaskRevoked": {"reason": "idle"},
    }
    classes = {c.__name__: c for c in (TaskAssigned, TaskStarted, TaskCommitted, TaskFailed, TaskRevoked)}
    event = classes[kind].model_validate({**named, **extras.get(kind, {})})
    before = copy.deepcopy(story.state)
    targets = TASK_TRANSITIONS.get((state, kind))
    if targets is None:
        with pytest.raises(IllegalEventError):
            story.state.apply(event)
        assert story.state == before
    else:
        story.state.apply(event)
        assert story.run.task(key).state in targets


@pytest.mark.parametrize(
    ("kind", "attempts", "ended"),
    [
        (FailureKind.USER_ERROR, 1, True),
        (FailureKind.NON_FINITE, 1, True),
        (FailureKind.HANG, 1, True),
        (FailureKind.CRASH, 3, True),
        (FailureKind.OUT_OF_MEMORY, 3, True),
        (FailureKind.UNAVAILABLE, 3, True),
        (FailureKind.PREEMPTED, 5, False),
        (FailureKind.STORAGE_FULL, 5, False),
    ],
)
def test_how_many_attempts_a_failure_leaves(kind: FailureKind, attempts: int, ended: bool) -> None:
    """User errors get one, crashes three, and what is not the task's fault costs none."""
    story = Story()
    story.fit()
    for _ in range(attempts):
        assert story.run.task(unit(1, 0)).state is TaskState.PENDING
        story.fail(unit(1, 0), 0, kind)
    assert (story.run.task(unit(1, 0)).state is TaskState.FAILED) == ended
    assert (story.model().state is ModelState.FAILED) == ended
    assert story.model("m01").state is ModelState.ACTIVE


@pytest.mark.parametrize("kind", [FailureKind.REQUIREMENTS, FailureKind.DATA])
def test_what_no_model_could_escape_fails_the_run(kind: FailureKind) -> None:
    """The failure is the run's; no model is blamed."""
    story = Story()
    story.fit()
    story.fail(unit(1, 0), 0, kind)
    assert story.run.fatal is not None
    assert story.model().state is ModelState.ACTIVE


def test_a_full_volume_is_noted_until_the_run_is_paused_for_it() -> None:
    """With the room that was lacking."""
    story = Story()
    story.fit()
    story.fail(unit(1, 0), 0, FailureKind.STORAGE_FULL, needs=77)
    assert story.run.storage_full is not None
    assert story.run.storage_full.needs_bytes == 77
    story.tell(RunPaused(run="fit-1", reason="full", needs_bytes=77))
    assert story.run.storage_full is None
