"""Attempts of a fused group: one use of a device, and one event if they end in the same way."""

from __future__ import annotations

from cerebro.contract.events import ModelRetried, TaskFailed
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.state import ExperimentState, TaskKey
from cerebro.state.reports.schedule_report import schedule_now
from cerebro.state.workers import LAST, Ended
from tests.state import fused
from tests.state.runs import TimedStory
from tests.state.stories import Story, joined, sub_epoch

DOUBTFUL = Failure(kind=FailureKind.USER_ERROR, message="CUDA error: illegal access", may_be_device=True)


def keys_of(models: int, epoch: int = 1) -> list[TaskKey]:
    """Return the sub-epochs of the first models on partition 0."""
    return [sub_epoch(epoch, 0, f"m{number:02}") for number in range(models)]


def run_group(story: Story, keys: list[TaskKey], failure: Failure | None = None) -> None:
    """Run a group on worker-0; all of its attempts end in this way."""
    story.append(*fused.assigned(story, keys))
    story.append(*fused.started(story, keys))
    for key in keys:
        if failure is None:
            story.commit(key, 0)
        else:
            attempt = story.run.task(key).attempt
            story.append(TaskFailed(task=str(key), attempt=attempt, worker="worker-0", failure=failure))


def machine_failures(state: ExperimentState) -> list[Ended]:
    """Return the recorded failures of worker-0 for which its machine is responsible."""
    return [each for each in state.workers["worker-0"].ended if each.is_device]


def test_a_group_that_fails_at_once_is_one_failure_of_its_worker() -> None:
    """The record names all tasks. The next group's failure is another one."""
    story, keys = Story(), keys_of(3)
    story.fit(models=3)
    ecc = Failure(kind=FailureKind.DEVICE, message="uncorrectable ECC error")
    run_group(story, keys, ecc)
    (failure,) = machine_failures(story.state)
    assert failure.tasks == tuple(map(str, keys))
    run_group(story, keys, ecc)
    assert len(machine_failures(story.state)) == 2


def test_failures_of_other_kinds_in_a_group_are_recorded_separately() -> None:
    """A model that diverges says nothing about the machine error of another model."""
    story, keys = Story(), keys_of(2)
    story.fit(models=2)
    story.append(*fused.assigned(story, keys))
    story.append(*fused.started(story, keys))
    for key, kind in zip(keys, (FailureKind.NON_FINITE, FailureKind.DEVICE), strict=True):
        story.break_off(key, 0, 1, kind)
    kinds = [each.failure and each.failure.kind for each in story.state.workers["worker-0"].ended]
    assert kinds == [FailureKind.NON_FINITE, FailureKind.DEVICE]


def test_commits_of_a_large_group_do_not_displace_earlier_failures() -> None:
    """A worker keeps its last attempts; a group is one of these."""
    story, models = Story(), LAST + 2
    story.fit(models=models)
    story.fail(sub_epoch(1, 0, f"m{models - 1:02}"), 0, FailureKind.DEVICE)
    run_group(story, keys_of(models - 1))
    assert len(machine_failures(story.state)) == 1
    assert len(story.state.workers["worker-0"].ended) == 2


def test_a_doubtful_failure_of_a_group_proves_a_fault_once() -> None:
    """Each model commits on another worker later, so the machine was responsible, for one event."""
    story, keys = Story(workers=1), keys_of(2)
    story.append(joined(1, partitions=(0, 1)))
    story.fit(models=2, max_attempts=3)
    run_group(story, keys, DOUBTFUL)
    story.append(*[ModelRetried(run="fit-1", model=key.model or "") for key in keys])
    for key in keys:
        story.start(key, 1)
        story.commit(key, 1)
    (proof,) = machine_failures(story.state)
    assert proof.tasks == tuple(map(str, keys))


def test_only_started_members_share_the_device_time() -> None:
    """Two of four start. Their process takes 2 s to start and 10 s to train both: 5 s each, and nothing was idle."""
    story, keys = TimedStory(workers=1), keys_of(4)
    story.fit(models=4, partitions=1, epochs=1)
    story.at(0, *fused.assigned(story, keys))
    story.at(0, fused.revoked(story, keys[0]), fused.revoked(story, keys[3]))
    story.at(0, *fused.started(story, keys[1:3]))
    story.ends(keys[1], 0, 12.0, start_s=2.0)
    story.ends(keys[2], 0, 12.0, start_s=2.0)
    assert story.run.device_time.trained_s == {"worker-0": 10.0}
    now = schedule_now(story.state, story.run, story.zero + 12.0)
    assert now is not None
    assert (now.device_s, now.idle_s, now.start_s) == (10.0, 0.0, 2.0)


def test_a_lost_sub_epoch_of_a_group_takes_its_device_time_along() -> None:
    """Afterwards the counts are as if the model had never trained."""
    story, keys = TimedStory(workers=1), keys_of(3)
    run = story.fit(models=3, partitions=1, epochs=1)
    story.at(0, *fused.assigned(story, keys))
    story.at(0, *fused.started(story, keys))
    for key in keys:
        story.ends(key, 0, 12.0, start_s=3.0)
    time, (lost,) = run.device_time, run.models["m01"].sub_epochs
    before = len(time.starts)
    time.remove(lost)
    assert (before, len(time.starts), time.trained_s["worker-0"]) == (3, 2, 6.0)
    time.add(lost)
    assert (len(time.starts), time.trained_s["worker-0"]) == (3, 9.0)
