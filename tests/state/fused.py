"""Fused groups in stories: sub-epochs that share the devices of one worker."""

from __future__ import annotations

from collections.abc import Iterable

from cerebro.contract.events import Event, TaskAssigned, TaskRevoked, TaskStarted
from cerebro.contract.parallel_plans import FUSED, ParallelPlan
from cerebro.contract.tasks.fused import FusedGroup
from cerebro.state import TaskKey
from tests.state.stories import Story

PLAN = ParallelPlan(technique=FUSED, params={"models": 64}, processes="one")


def assigned(story: Story, keys: Iterable[TaskKey], worker: int = 0) -> list[Event]:
    """Return the assignment of sub-epochs as a fused group on device 0."""
    tasks = {str(key): story.attempt(key) for key in keys}
    first = next(iter(tasks))
    group = FusedGroup.led_by(first, tasks[first], len(tasks))
    return [
        TaskAssigned(task=task, attempt=attempt, worker=f"worker-{worker}", parallel_plan=PLAN, group=group)
        for task, attempt in tasks.items()
    ]


def started(story: Story, keys: Iterable[TaskKey], worker: int = 0) -> list[Event]:
    """Return the starts of the newest attempts."""
    return [
        TaskStarted(task=str(key), attempt=story.run.task(key).attempt, worker=f"worker-{worker}")
        for key in keys
    ]


def revoked(story: Story, key: TaskKey, worker: int = 0) -> Event:
    """Return the revocation of the newest attempt."""
    attempt = story.run.task(key).attempt
    return TaskRevoked(
        task=str(key), attempt=attempt, worker=f"worker-{worker}", reason="another task goes first"
    )
