"""Task states: transitions, and the cost of each kind of failure."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from cerebro.contract.events import (
    ModelRetried,
    TaskAssigned,
    TaskCommitted,
    TaskFailed,
    TaskRevoked,
    TaskStarted,
)
from cerebro.contract.failure_rules import ACTIONS, Action, MatchedRule
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.results import TaskResult
from cerebro.errors import IllegalEventError
from cerebro.state import ModelState, Task, TaskKey, TaskState
from cerebro.state.tasks.task import MAX_DEVICE_FAILURES
from cerebro.state.tasks.task import TRANSITIONS as TASK_TRANSITIONS
from tests.state.stories import Story, joined, sub_epoch

TASK_EVENTS = ["TaskAssigned", "TaskStarted", "TaskCommitted", "TaskFailed", "TaskRevoked"]


def task_in(state: TaskState) -> Story:
    """Return a story whose first sub-epoch is in this state."""
    story, key = Story(), sub_epoch(1, 0)
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
def test_tasks_change_state_only_by_the_table(state: TaskState, kind: str) -> None:
    """All other pairs of state and event are refused without effect."""
    story, key = task_in(state), sub_epoch(1, 0)
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
def test_each_failure_kind_has_its_number_of_attempts(kind: FailureKind, attempts: int, ended: bool) -> None:
    """A user error gets one attempt, a crash three; failures caused by others are free."""
    story = Story()
    story.fit()
    for _ in range(attempts):
        assert story.run.task(sub_epoch(1, 0)).state is TaskState.PENDING
        story.fail(sub_epoch(1, 0), 0, kind)
    assert (story.run.task(sub_epoch(1, 0)).state is TaskState.FAILED) == ended
    assert (story.model().state is ModelState.FAILED) == ended
    assert story.model("m01").state is ModelState.ACTIVE


def hang(story: Story, *, is_idle: bool) -> None:
    attempt = story.start(sub_epoch(1, 0), 0)
    failure = Failure(kind=FailureKind.HANG, message="no batch", is_idle=is_idle)
    story.append(TaskFailed(task=str(sub_epoch(1, 0)), attempt=attempt, worker="worker-0", failure=failure))


def test_an_idle_hang_is_retried_once_then_fails() -> None:
    """A hang that uses the processor is final at once. A user's retry resets the count."""
    story = Story()
    story.fit()
    for _ in range(2):
        hang(story, is_idle=True)
        assert story.run.task(sub_epoch(1, 0)).state is TaskState.PENDING
        hang(story, is_idle=True)
        assert story.run.task(sub_epoch(1, 0)).state is TaskState.FAILED
        assert story.model().state is ModelState.FAILED
        story.append(ModelRetried(run="fit-1", model="m00", by="ann"))
    hang(story, is_idle=False)
    assert story.run.task(sub_epoch(1, 0)).state is TaskState.FAILED


@pytest.mark.parametrize("kind", [FailureKind.REQUIREMENTS, FailureKind.DATA])
def test_a_failure_that_affects_every_model_fails_the_run(kind: FailureKind) -> None:
    """The run fails, without blame for a model."""
    story = Story()
    story.fit()
    story.fail(sub_epoch(1, 0), 0, kind)
    assert story.run.failures.fatal is not None
    assert story.model().state is ModelState.ACTIVE


def fail_with(
    story: Story, failure: Failure, *, worker: int = 0, partition: int = 0, model: str = "m00"
) -> Task:
    """Fail the next attempt of a sub-epoch; return its task."""
    key = sub_epoch(1, partition, model)
    attempt = story.start(key, worker)
    story.append(TaskFailed(task=str(key), attempt=attempt, worker=f"worker-{worker}", failure=failure))
    return story.run.task(key)


def test_hardware_failures_cost_the_task_no_attempt_up_to_a_limit() -> None:
    """The worker is charged. After the limit the task fails with the count and the workers; a user's retry
    resets the count."""
    story = Story()
    story.fit()
    broken = Failure(kind=FailureKind.DEVICE, message="uncorrectable ECC error encountered")
    for number in range(1, MAX_DEVICE_FAILURES):
        task = fail_with(story, broken)
        assert (task.state, task.failures, task.device_failures) == (TaskState.PENDING, 0, number)
    assert task.failed_at == {"worker-0"}
    assert [each.is_device for each in story.state.workers["worker-0"].ended] == [True] * number
    assert fail_with(story, broken).state is TaskState.FAILED
    failure = story.model().failures.final
    assert failure is not None
    assert failure.message.startswith(f"its machine failed {MAX_DEVICE_FAILURES} times (on worker-0)")
    story.append(ModelRetried(run="fit-1", model="m00", by="ann"))
    assert fail_with(story, broken).state is TaskState.PENDING


def test_a_possible_hardware_failure_is_confirmed_once_in_a_run() -> None:
    """If the failure repeats, the code is at fault for all models."""
    story = Story()
    story.fit()
    doubtful = Failure(kind=FailureKind.USER_ERROR, message="illegal memory access", may_be_device=True)
    assert fail_with(story, doubtful).state is TaskState.PENDING
    assert fail_with(story, doubtful, model="m01").state is TaskState.FAILED
    assert fail_with(story, doubtful).state is TaskState.FAILED
    assert not any(each.is_device for each in story.state.workers["worker-0"].ended)


RETRIED = {FailureKind.CRASH, FailureKind.UNAVAILABLE, FailureKind.OUT_OF_MEMORY, FailureKind.DEVICE}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("kind", [kind for kind in FailureKind if kind.traits.uses_failure_rules])
def test_failure_rules_apply_to_every_kind(kind: FailureKind, action: Action) -> None:
    """ "No retry" also applies to hardware faults, and "elsewhere" moves the task; other actions leave the
    task unchanged."""
    story, key = task_in(TaskState.RUNNING), sub_epoch(1, 0)
    rule = MatchedRule(name="a rule", action=action, line="as it was told")
    story.append(
        TaskFailed(
            task=str(key),
            attempt=1,
            worker="worker-0",
            failure=Failure(kind=kind, message="so", rule=rule, memory_kind="host", limit_bytes=8),
        )
    )
    task, goes_on = story.run.task(key), kind in RETRIED or action == "retry_elsewhere"
    is_over = action == "no_retry" or not goes_on
    assert task.state is (TaskState.FAILED if is_over else TaskState.PENDING)
    is_of_all = is_over and kind.traits.fails_run  # in that case the run fails, not the model
    assert (story.run.failures.fatal is not None) == is_of_all
    assert story.model().state is (ModelState.FAILED if is_over and not is_of_all else ModelState.ACTIVE)
    if action == "retry_elsewhere":
        assert task.failed_at == {"worker-0"}


def test_a_no_retry_rule_also_applies_to_out_of_memory() -> None:
    """This includes an attempt that ran alone and proved that the limit is too small."""
    story, key = task_in(TaskState.RUNNING), sub_epoch(1, 0)
    for attempt, action in ((1, "label"), (2, "no_retry")):
        rule = MatchedRule.model_validate({"name": "a rule", "action": action})
        failure = Failure(
            kind=FailureKind.OUT_OF_MEMORY, message="", memory_kind="host", limit_bytes=8, rule=rule
        )
        if attempt > 1:
            story.start(key, 0)
        story.append(TaskFailed(task=str(key), attempt=attempt, worker="worker-0", failure=failure))
    assert story.run.task(key).lacks
    assert (story.run.task(key).state, story.model().state) == (TaskState.FAILED, ModelState.FAILED)


@pytest.mark.parametrize("kind", [kind for kind in FailureKind if kind.traits.retry == "free"])
def test_failures_outside_the_task_ignore_rules(kind: FailureKind) -> None:
    """Workers apply no rule to such failures, and the fold ignores one."""
    story, key = task_in(TaskState.RUNNING), sub_epoch(1, 0)
    rule = MatchedRule(name="a rule", action="no_retry")
    failure = Failure(kind=kind, message="", rule=rule)
    story.append(TaskFailed(task=str(key), attempt=1, worker="worker-0", failure=failure))
    assert story.run.task(key).state is TaskState.PENDING


def test_success_on_another_worker_blames_the_first_machine() -> None:
    """The failure then counts for the first worker, and the next one is confirmed too. Success on the same
    worker proves nothing."""
    story = Story(workers=0)
    for number in range(2):
        story.append(joined(number, partitions=(0, 1)))
    story.fit()
    doubtful = Failure(kind=FailureKind.USER_ERROR, message="illegal memory access", may_be_device=True)
    fail_with(story, doubtful)
    story.train(1, 0, worker=1)
    assert [each.is_device for each in story.state.workers["worker-0"].ended] == [False, True]
    assert fail_with(story, doubtful, partition=1).state is TaskState.PENDING
    story.train(1, 1, worker=0)
    assert [each.is_device for each in story.state.workers["worker-0"].ended] == [False, True, False, False]


@pytest.mark.parametrize("task", ["train", "valid"])
@pytest.mark.parametrize("is_running", [False, True])
@pytest.mark.parametrize("flags", [{}, {"may_be_device": True}, {"is_idle": True}])
@pytest.mark.parametrize("kind", list(FailureKind))
def test_every_failure_ends_in_a_bounded_number_of_attempts(
    kind: FailureKind, flags: dict[str, bool], is_running: bool, task: str
) -> None:
    """Failures on one or two workers lead to another attempt or a final failure. Only failures outside the
    task may repeat without limit."""
    for workers in (1, 2):
        story = Story(workers=0)
        for number in range(2):
            story.append(joined(number, partitions=(0, 1)))
        story.fit(validated=task == "valid", epochs=1)
        key = sub_epoch(1, 0)
        if task == "valid":
            story.epoch(1)
            key = TaskKey(run="fit-1", kind="valid", model="m00", epoch=1)
        states = []
        for number in range(2 * MAX_DEVICE_FAILURES):
            if story.run.task(key).state is not TaskState.PENDING or story.run.failures.fatal is not None:
                break
            if task == "valid" and kind is FailureKind.CHECKPOINT and not story.model().is_trained:
                break  # the previous sub-epoch runs again first
            if kind is FailureKind.CHECKPOINT and story.model().state is ModelState.FAILED:
                break
            worker = number % workers
            attempt = (story.start if is_running else story.assign)(key, worker)
            failure = Failure.model_validate({"kind": kind, "message": "boom", **flags})
            failed = TaskFailed(task=str(key), attempt=attempt, worker=f"worker-{worker}", failure=failure)
            story.append(failed)
            states.append(story.run.task(key).state)
        assert set(states) <= {TaskState.PENDING, TaskState.FAILED}
        may_go_on = {FailureKind.PREEMPTED, FailureKind.STORAGE_FULL, FailureKind.CHECKPOINT}
        if kind not in may_go_on:
            assert states[-1] is TaskState.FAILED or story.run.failures.fatal is not None
            assert len(states) <= MAX_DEVICE_FAILURES
