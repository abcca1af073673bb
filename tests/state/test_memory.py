"""Learned memory needs of tasks, and tasks that no worker can run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.contract.events import ModelRetried, ModelStopRequested, TaskFailed, TaskGivenUp
from cerebro.contract.parallel_plans import MemoryKind
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.results import TaskResult
from cerebro.state import ModelState, TaskState
from cerebro.state.models.compaction import compact
from cerebro.state.tasks.memory_need import Lack, has_room, with_failure
from tests.state import fused
from tests.state.stories import Story, sub_epoch

KEY = sub_epoch(1, 0)
GIB = 1 << 30


def story_of(*limits: int) -> Story:
    """A sub-epoch that ran out of memory once per limit, as the agent reports."""
    story = Story()
    story.fit()
    for limit in limits:
        story.start(KEY, 0)
        failure = Failure(
            kind=FailureKind.OUT_OF_MEMORY, message="too little", memory_kind="host", limit_bytes=limit
        )
        attempt = story.run.task(KEY).attempt
        story.append(TaskFailed(task=str(KEY), attempt=attempt, worker="worker-0", failure=failure))
    return story


@given(limit=st.integers(1, 1 << 40), peak=st.integers(0, 1 << 40), of_model=st.integers(0, 1 << 40))
def test_a_memory_need_exceeds_the_limit_that_was_too_small(limit: int, peak: int, of_model: int) -> None:
    """The need exceeds the limit, and 1.5 times the limit is enough unless the peak was larger."""
    need = Lack(memory_kind="host", limit_bytes=limit, peak_bytes=peak).need_bytes(of_model)
    assert not has_room(limit, need)
    assert need >= 1.1 * max(peak, of_model)
    if max(peak, of_model) <= limit and limit > 100:
        assert has_room(round(1.5 * limit), need)


@pytest.mark.parametrize("memory_kind", ["host", "device"])
def test_the_largest_observed_limit_and_peak_count(memory_kind: MemoryKind) -> None:
    """Each memory type counts separately; reports without type or limit are ignored."""
    known = Failure(
        kind=FailureKind.OUT_OF_MEMORY, message="", memory_kind=memory_kind, limit_bytes=8, peak_bytes=7
    )
    less = known.model_copy(update={"limit_bytes": 4, "peak_bytes": 9})
    unknown = [known.model_copy(update={"memory_kind": None}), known.model_copy(update={"limit_bytes": 0})]
    lacks = with_failure(with_failure((), known), less)
    assert lacks == (Lack(memory_kind=memory_kind, limit_bytes=8, peak_bytes=9),)
    for each in unknown:
        assert with_failure(lacks, each) == lacks


def test_only_an_attempt_that_ran_alone_proves_a_memory_need() -> None:
    """Other tasks may have used memory during the first attempt. Learning from a larger limit costs no attempt."""
    first, second = story_of(8), story_of(8, 8)
    assert first.run.task(KEY).lacks == ()
    assert second.run.task(KEY).lacks == (Lack(memory_kind="host", limit_bytes=8),)
    assert (first.run.task(KEY).failures, second.run.task(KEY).failures) == (1, 1)
    assert story_of(8, 8, 8).run.task(KEY).failures == 2


def test_a_sub_epoch_that_is_given_up_fails_its_model_with_the_reason() -> None:
    """The run continues, and a user can retry the model alone."""
    story = story_of(8, 8)
    story.append(TaskGivenUp(task=str(KEY), attempt=2, reason="it needs 9"))
    model = story.run.models["m00"]
    assert (story.run.task(KEY).state, model.state) == (TaskState.FAILED, ModelState.FAILED)
    assert model.failures.final is not None
    assert (model.failures.final.kind, model.failures.final.message) == (
        FailureKind.OUT_OF_MEMORY,
        "it needs 9",
    )
    assert story.run.models["m01"].state is ModelState.ACTIVE
    story.append(ModelRetried(run="fit-1", model="m00"))
    assert (story.run.task(KEY).state, model.state) == (TaskState.PENDING, ModelState.ACTIVE)
    assert story.run.task(KEY).exhausted
    story.start(KEY, 0)
    failure = story_of(8).run.task(KEY).failure
    assert failure is not None
    story.append(TaskFailed(task=str(KEY), attempt=3, worker="worker-0", failure=failure))
    assert story.run.task(KEY).lacks == (Lack(memory_kind="host", limit_bytes=8),)


def test_giving_up_an_outdated_attempt_has_no_effect() -> None:
    """The event is ignored if a new attempt started, the task is unknown, or the model was stopped, so that
    logs stay readable."""
    story = story_of(8, 8)
    story.start(KEY, 0)
    for attempt in (2, 3):
        story.append(TaskGivenUp(task=str(KEY), attempt=attempt, reason="it needs 9"))
    story.append(TaskGivenUp(task=str(sub_epoch(1, 1)), attempt=1, reason="it needs 9"))
    assert story.run.task(KEY).state is TaskState.RUNNING
    assert story.run.models["m00"].state is ModelState.ACTIVE
    stopped = story_of(8, 8)
    stopped.append(ModelStopRequested(run="fit-1", model="m00"))
    stopped.append(TaskGivenUp(task=str(KEY), attempt=2, reason="it needs 9"))
    assert stopped.run.models["m00"].state is ModelState.STOPPED


def test_the_memory_of_a_stack_is_no_memory_of_its_models() -> None:
    """The peak of a stack's process has several models; the need of a model counts its own sub-epochs, also later."""

    def result(peak_bytes: int) -> TaskResult:
        checkpoint = CheckpointRef(name=f"c{peak_bytes}", checksum="-", size=1)
        return TaskResult(
            rows=10,
            metrics={"loss": 1.0},
            checkpoint=checkpoint,
            peak_bytes=peak_bytes,
            peak_gpu_bytes=2 * peak_bytes,
        )

    story = Story()
    run = story.fit(models=2)
    keys = [sub_epoch(1, 0, name) for name in ("m00", "m01")]
    story.append(*fused.assigned(story, keys))
    story.append(*fused.started(story, keys))
    for key in keys:
        story.commit(key, 0, result(900))
    model = run.models["m00"]
    assert model.peaks == (0, 0)
    story.do(sub_epoch(1, 1), 1, result(50))
    assert (model.peaks, model.sub_epochs[0].peak_bytes) == ((50, 100), 900)
    story.do(sub_epoch(2, 0), 0, result(40))
    compact(model, 1, run.fit_rows)
    assert model.sub_epochs.compacted == 2
    assert model.peaks == (50, 100)
