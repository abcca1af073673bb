"""Sub-epochs on sets of partitions: valid gangs, and recovery when a gang loses a worker."""

from __future__ import annotations

from cerebro.contract.events import TaskAssigned, TaskRevoked, TaskStarted
from cerebro.contract.tasks.failures import FailureKind
from cerebro.contract.tasks.gangs import Member
from cerebro.figures.schedule.spans import spans
from cerebro.state import TaskKey, TaskState
from cerebro.state.models.positions import position_of
from cerebro.state.reports.state_words import task as words
from tests.state.stories import Story, joined, sub_epoch
from tests.state.test_hopping import refused


def gang(*partitions: int, model: str = "m00", epoch: int = 1) -> TaskKey:
    """Return the key of a sub-epoch on these partitions."""
    return sub_epoch(epoch, partitions[0], model)._replace(other_partitions=partitions[1:])


def member(number: int, partition: int | None = None, devices: tuple[int, ...] = (0,)) -> Member:
    return Member(
        worker=f"worker-{number}", partition=number if partition is None else partition, devices=devices
    )


def assigned(key: TaskKey, *others: Member, worker: int = 0, attempt: int = 1) -> TaskAssigned:
    return TaskAssigned(task=str(key), attempt=attempt, worker=f"worker-{worker}", other_members=others)


def four() -> Story:
    story = Story(workers=4)
    story.fit(models=2, partitions=4)
    return story


def test_an_epoch_is_complete_after_any_sets_cover_all_partitions() -> None:
    """The batches of all members count for the model's training position."""
    story = four()
    story.assign(gang(0, 2), 0, others=(member(2),))
    story.append(TaskStarted(task=str(gang(0, 2)), attempt=1, worker="worker-0"))
    story.commit(gang(0, 2), 0)
    model = story.model()
    assert (model.progress.trained, model.remaining, model.completed_epochs) == (2, (1, 3), 0)
    assert (completed := model.sub_epoch(1, 2)) is not None
    assert (completed.partitions, completed.worker) == ((0, 2), "worker-0")
    rows = dict.fromkeys(range(4), 10)
    assert position_of(model, rows, len(model.sub_epochs)).step == 20
    refused(story, assigned(sub_epoch(1, 2), worker=2), "completeness")
    refused(story, assigned(gang(1, 2), member(2), worker=1), "completeness")
    story.train(1, 1)
    story.train(1, 3)
    assert (model.epoch, model.completed_epochs, len(model.sub_epochs)) == (2, 1, 3)
    assert model.epoch_checkpoint(1) == model.sub_epochs[-1].checkpoint.ref()
    assert position_of(model, rows, len(model.sub_epochs)).step == 40
    assert story.run.progress() == (4, 16)


def test_a_gang_sub_epoch_counts_as_work_of_each_member() -> None:
    """Device-seconds count for each member; the model has one span."""
    story = four()
    story.assign(gang(0, 2), 0, others=(member(2),))
    story.append(TaskStarted(task=str(gang(0, 2)), attempt=1, worker="worker-0"))
    story.commit(gang(0, 2), 0)
    assert story.run.device_time.trained_s == {"worker-0": 1.0, "worker-2": 1.0}
    assert story.model().effort.trained_s == 1.0
    assert [(bar.worker, bar.partition) for bar in spans(story.run, story.time)] == [
        ("worker-0", 0),
        ("worker-2", 2),
    ]
    assert words(gang(0, 2)) == "trains m00, epoch 1, partitions 0 and 2"


def test_each_member_of_a_gang_holds_its_own_partition() -> None:
    """Its members follow the key's order, and no worker has two partitions."""
    story = four()
    story.append(joined(1, partitions=(1, 2)))
    refused(story, assigned(gang(0, 2)), "reads other partitions")
    refused(story, assigned(gang(0, 2), member(3)), "reads other partitions")
    refused(story, assigned(sub_epoch(1, 0), member(2)), "reads other partitions")
    refused(story, assigned(gang(0, 2), member(3, 2)), "worker-3, which does not hold partition 2")
    refused(story, assigned(gang(1, 2), member(1, 2), worker=1), "names a worker twice")
    refused(story, assigned(gang(0, 2), Member(worker="worker-9", partition=2)), "unknown worker worker-9")
    refused(story, assigned(gang(0, 2), member(2, devices=(1,))), "device 1 of worker-2, which has 1")


def test_a_gang_occupies_all_its_workers() -> None:
    """It starts when it is first in the queue of each member, and occupies all members until it finishes."""
    story = four()
    story.start(sub_epoch(1, 2, "m01"), 2)
    story.assign(gang(0, 2), 0, others=(member(2),))
    started = TaskStarted(task=str(gang(0, 2)), attempt=1, worker="worker-0")
    refused(story, started, "worker-2 started .* is open there")
    refused(story, assigned(sub_epoch(1, 3), worker=3), "isolation")
    story.commit(sub_epoch(1, 2, "m01"), 2)
    story.append(started)
    assert [worker.open_tasks for worker in story.state.workers.values()] == [
        {str(gang(0, 2)): (0,)},
        {},
        {str(gang(0, 2)): (0,)},
        {},
    ]


def test_a_gang_loses_its_attempt_as_a_whole() -> None:
    """Then the model may train with another set."""
    story = four()
    story.assign(gang(0, 2), 0, others=(member(2),))
    story.append(TaskStarted(task=str(gang(0, 2)), attempt=1, worker="worker-0"))
    lost = TaskRevoked(
        task=str(gang(0, 2)), attempt=1, worker="worker-0", reason="worker-2 is lost", loss=FailureKind.CRASH
    )
    refused(story, lost.model_copy(update={"worker": "worker-2"}), "but worker-0 has it")
    story.append(lost)
    assert not any(worker.open_tasks for worker in story.state.workers.values())
    assert story.run.tasks.by_key[str(gang(0, 2))].state is TaskState.PENDING
    story.assign(gang(0, 1, 3), 0, others=(member(1), member(3)))


def test_a_lost_checkpoint_reopens_the_whole_set() -> None:
    """The sub-epoch is due again, under the same key."""
    story = four()
    story.assign(gang(0, 1, 2, 3), 0, others=(member(1), member(2), member(3)))
    story.append(TaskStarted(task=str(gang(0, 1, 2, 3)), attempt=1, worker="worker-0"))
    story.commit(gang(0, 1, 2, 3), 0)
    assert story.model().completed_epochs == 1
    story.fail(sub_epoch(2, 0), 0, FailureKind.CHECKPOINT)
    model = story.model()
    assert (model.progress.trained, model.completed_epochs, model.remaining) == (0, 0, (0, 1, 2, 3))
    assert story.run.tasks.by_key[str(gang(0, 1, 2, 3))].state is TaskState.PENDING
    story.train(1, 3)
