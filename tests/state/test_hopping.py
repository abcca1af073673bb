"""The fold refuses violations of model hopping: isolation, completeness, and data that never moves."""

from __future__ import annotations

import copy

import pytest

from cerebro.contract.events import Event, TaskAssigned, TaskRevoked, TaskStarted
from cerebro.errors import IllegalEventError
from cerebro.state import TaskKey
from cerebro.state.tasks.task import OPEN
from tests.state.stories import DATASET, Story, joined, lost, sub_epoch


def refused(story: Story, event: Event, match: str) -> None:
    before = copy.deepcopy(story.state)
    with pytest.raises(IllegalEventError, match=match):
        story.append(event)
    assert story.state == before


def assigned(key: TaskKey, worker: int, attempt: int = 1, devices: tuple[int, ...] = (0,)) -> TaskAssigned:
    return TaskAssigned(task=str(key), attempt=attempt, worker=f"worker-{worker}", devices=devices)


def test_a_model_trains_on_one_worker_at_a_time() -> None:
    story = Story()
    story.fit()
    story.assign(sub_epoch(1, 0), 0)
    refused(story, assigned(sub_epoch(1, 1), 1), "isolation")


def test_a_model_trains_on_each_partition_once_per_epoch() -> None:
    """Neither a repeated partition nor one of the next epoch is legal."""
    story = Story()
    story.fit()
    story.train(1, 0)
    refused(story, assigned(sub_epoch(1, 0), 0, 2), "while it is committed")
    refused(story, assigned(sub_epoch(2, 0), 0), "completeness")
    refused(story, assigned(sub_epoch(1, 7), 0), "completeness")
    story.train(1, 1)
    story.train(2, 0)


def test_a_sub_epoch_goes_to_a_worker_that_holds_its_partition() -> None:
    story = Story()
    story.fit()
    refused(story, assigned(sub_epoch(1, 0), 1), "does not hold")


def test_a_worker_queues_at_most_one_task() -> None:
    """One task runs and one waits; the waiting task cannot overtake."""
    story = Story(workers=1)
    story.fit(models=3, partitions=1)
    story.assign(sub_epoch(1, 0, "m00"), 0)
    story.assign(sub_epoch(1, 0, "m01"), 0)
    refused(story, assigned(sub_epoch(1, 0, "m02"), 0), "which has")
    started = TaskStarted(task=str(sub_epoch(1, 0, "m01")), attempt=1, worker="worker-0")
    refused(story, started, "is open there")
    assert {str(t.key) for t in story.run.tasks.open.values()} == set(
        story.state.workers["worker-0"].open_tasks
    )
    assert all(task.state in OPEN for task in story.run.tasks.open.values())


def test_each_device_has_one_running_and_one_queued_task() -> None:
    """A task with several devices waits for all of them; a task without devices waits for none."""
    story = Story(workers=1, devices=2)
    story.fit(models=6, partitions=1)
    story.start(sub_epoch(1, 0, "m00"), 0, (0,))
    story.start(sub_epoch(1, 0, "m01"), 0, (1,))
    story.assign(sub_epoch(1, 0, "m02"), 0, (0, 1))
    refused(story, assigned(sub_epoch(1, 0, "m03"), 0, devices=(1,)), "which has")
    refused(story, assigned(sub_epoch(1, 0, "m03"), 0, devices=(2,)), "device 2 of worker-0, which has 2")
    story.start(sub_epoch(1, 0, "m04"), 0, ())
    started = TaskStarted(task=str(sub_epoch(1, 0, "m02")), attempt=1, worker="worker-0")
    refused(story, started, "is open there")
    story.commit(sub_epoch(1, 0, "m00"), 0)
    refused(story, started, "is open there")
    story.commit(sub_epoch(1, 0, "m01"), 0)
    story.append(started)
    assert [completed.devices for name in ("m00", "m01") for completed in story.model(name).sub_epochs] == [
        (0,),
        (1,),
    ]


def test_a_lost_worker_gets_no_tasks_and_rejoins_without_any() -> None:
    """Its tasks stay open until the controller revokes them."""
    story = Story()
    story.fit()
    story.start(sub_epoch(1, 0), 0)
    story.append(lost(0))
    refused(story, assigned(sub_epoch(1, 0, "m01"), 0), "is lost")
    story.append(joined(0, incarnation="b", partitions=()))
    assert story.state.workers["worker-0"].stale_tasks == {str(sub_epoch(1, 0))}
    refused(story, assigned(sub_epoch(1, 0), 0, attempt=2), "while it is running")
    story.append(TaskRevoked(task=str(sub_epoch(1, 0)), attempt=1, worker="worker-0", reason="lost"))
    assert story.state.workers["worker-0"].stale_tasks == set()
    assert story.state.holders(DATASET, 0) == []
