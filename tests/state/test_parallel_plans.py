"""Parallel plans of a model: ruled out by attempts, never chosen again, reported when none remains."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import ModelRetried, TaskAssigned, TaskFailed, TaskRevoked
from cerebro.contract.parallel_plans import FUSED, SINGLE, MemoryKind, ParallelPlan
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.errors import IllegalEventError
from cerebro.state import ModelState, TaskState, schedule_lines
from cerebro.state.experiment import fold
from cerebro.state.models.parallel_plans import allowed_plans, describe_plans, lines
from tests.state.stories import Story, sub_epoch

CHECKPOINTING = ParallelPlan(technique="checkpointing")
DDP = ParallelPlan(technique="ddp", size=2)
FSDP = ParallelPlan(technique="fsdp", params={"reshard": False}, size=2)
FUSED_16 = ParallelPlan(technique=FUSED, params={"models": 16}, processes="one")
PARALLEL_PLANS = (SINGLE, CHECKPOINTING, DDP, FSDP)

NOT_APPLICABLE = Failure(kind=FailureKind.NOT_APPLICABLE, message="no repeated block\nname one")
DEVICE = Failure(
    kind=FailureKind.OUT_OF_MEMORY, message="CUDA out of memory", memory_kind="device", peak_bytes=3 * 2**30
)
HOST = Failure(kind=FailureKind.OUT_OF_MEMORY, message="killed for memory", memory_kind="host")
CRASH = Failure(kind=FailureKind.CRASH, message="killed")


def story(*parallel_plans: ParallelPlan, max_attempts: int = 3) -> Story:
    """A fit of two models with these parallel plans, on workers with two devices."""
    story = Story(devices=2)
    story.fit(parallel_plans=parallel_plans, max_attempts=max_attempts)
    return story


def attempt(story: Story, parallel_plan: ParallelPlan, failure: Failure | None = None) -> None:
    """Try the first model's first sub-epoch with a parallel plan; it fails, or is committed."""
    devices = tuple(range(parallel_plan.size))
    key = sub_epoch(1, 0)
    number = story.start(
        key, 0, devices, parallel_plan=parallel_plan if parallel_plan.label != "single" else None
    )
    if failure is None:
        story.commit(key, 0)
        return
    story.append(TaskFailed(task=str(key), attempt=number, worker="worker-0", failure=failure))


def labels(story: Story) -> list[str]:
    """Return the parallel plans that the first model may still use."""
    return [parallel_plan.label for parallel_plan in allowed_plans(story.run, story.model())]


@pytest.mark.parametrize("failure", [NOT_APPLICABLE, DEVICE])
def test_an_unusable_parallel_plan_is_ruled_out_without_costing_an_attempt(failure: Failure) -> None:
    """Another parallel plan executes the sub-epoch, with the full number of attempts."""
    run_story = story(*PARALLEL_PLANS, max_attempts=1)
    attempt(run_story, SINGLE, failure)
    assert labels(run_story) == ["checkpointing", "ddp-2", "fsdp(reshard=False)-2"]
    attempt(run_story, DDP, failure)
    assert labels(run_story) == ["checkpointing", "fsdp(reshard=False)-2"]
    assert run_story.run.task(sub_epoch(1, 0)).failures == 0
    assert not run_story.run.tasks.exhausted
    assert run_story.model("m01").failures.ruled_out == {}
    attempt(run_story, FSDP)
    (completed,) = run_story.model().sub_epochs
    assert (completed.parallel_plan, completed.devices) == (FSDP, (0, 1))
    assert {label: struck.reason for label, struck in run_story.model().failures.ruled_out.items()} == {
        "single": failure.line,
        "ddp-2": failure.line,
    }


def test_workers_killed_for_memory_rule_out_the_parallel_plan() -> None:
    """The running task counts as out of host memory; queued tasks are revoked."""
    run_story = story(SINGLE, CHECKPOINTING)
    for _ in range(2):
        number = run_story.start(sub_epoch(1, 0), 0)
        loss = TaskRevoked(
            task=str(sub_epoch(1, 0)),
            attempt=number,
            worker="worker-0",
            reason="OOMKilled",
            loss=FailureKind.OUT_OF_MEMORY,
        )
        run_story.append(loss)
    assert labels(run_story) == ["checkpointing"]
    assert run_story.model().failures.ruled_out["single"].memory_kind == "host"
    assert run_story.run.task(sub_epoch(1, 0)).state is TaskState.PENDING


def test_a_model_without_parallel_plans_fails_with_the_reason_of_each() -> None:
    """The failure lists each reason, the peak memory and a fix; the other model continues."""
    run_story = story(SINGLE, CHECKPOINTING, DDP, max_attempts=2)
    attempt(run_story, CHECKPOINTING, NOT_APPLICABLE)
    attempt(run_story, SINGLE, DEVICE)
    for _ in range(2):
        assert run_story.model().state is ModelState.ACTIVE
        attempt(run_story, DDP, DEVICE)
    assert run_story.model().state is ModelState.FAILED
    failure = run_story.model().failures.final
    assert failure is not None
    first, *table = failure.message.splitlines()
    assert first.startswith(
        "CUDA out of memory; no parallel plan is left to train m00: 3 were tried or cannot be used; the most memory "
    )
    assert "3 GiB" in first
    assert "Hints.blocks" in first
    assert table == [
        "  checkpointing: no repeated block",
        "  single: out of memory of the device: CUDA out of memory",
        "  ddp-2: out of memory of the device: CUDA out of memory",
    ]
    assert run_story.model("m01").state is ModelState.ACTIVE


def test_a_stack_is_no_other_plan_for_a_model_that_lacks_memory_alone() -> None:
    """A stack needs more memory, so each attempt counts, and the model fails after the last one."""
    run_story = story(FUSED_16, SINGLE, max_attempts=2)
    for _ in range(2):
        assert labels(run_story) == ["fused(models=16)", "single"]
        attempt(run_story, SINGLE, DEVICE)
    assert labels(run_story) == []
    assert run_story.model().state is ModelState.FAILED
    stack, single = describe_plans(run_story.run, run_story.model())
    assert stack.ruled_out == "single is ruled out, and a stack needs more memory"
    assert single.ruled_out == "out of memory of the device: CUDA out of memory"


def test_a_model_whose_only_parallel_plan_does_not_apply_fails_at_once() -> None:
    """A retry would give the same result. The failure is the plan's own message, without a table."""
    run_story = story(DDP)
    attempt(run_story, DDP, NOT_APPLICABLE)
    assert run_story.model().state is ModelState.FAILED
    assert run_story.model().failures.final == NOT_APPLICABLE


def test_a_retry_restores_the_plans_of_a_model_without_any() -> None:
    """Workers may have changed. A model that failed for another reason keeps its ruled-out plans."""
    run_story = story(SINGLE, CHECKPOINTING)
    attempt(run_story, SINGLE, NOT_APPLICABLE)
    run_story.fail(sub_epoch(1, 0), 0, FailureKind.USER_ERROR)
    run_story.append(ModelRetried(run="fit-1", model="m00"))
    assert labels(run_story) == ["checkpointing"]
    attempt(run_story, CHECKPOINTING, NOT_APPLICABLE)
    assert labels(run_story) == []
    run_story.append(ModelRetried(run="fit-1", model="m00"))
    assert labels(run_story) == ["single", "checkpointing"]


def test_an_assignment_has_the_number_of_devices_of_its_parallel_plan() -> None:
    """The fold refuses an assignment with another number of devices."""
    run_story = story(SINGLE, DDP)
    event = TaskAssigned(
        task=str(sub_epoch(1, 0)), attempt=1, worker="worker-0", devices=(0,), parallel_plan=DDP
    )
    with pytest.raises(IllegalEventError, match="ddp-2"):
        run_story.append(event)


FAILURES = (NOT_APPLICABLE, DEVICE, HOST, CRASH)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), max_attempts=st.integers(1, 3), places=st.booleans())
def test_after_any_failures_a_model_has_a_parallel_plan_or_has_failed(
    seed: int, max_attempts: int, places: bool
) -> None:
    """Only an attempt's own plan is ruled out, permanently, and replaying the log gives the same state."""
    random = Random(seed)
    run_story = story(FUSED_16, *PARALLEL_PLANS, max_attempts=max_attempts)
    struck: dict[str, MemoryKind | None] = {}
    for _ in range(30):
        if run_story.model().state is not ModelState.ACTIVE:
            break
        parallel_plan = random.choice([*allowed_plans(run_story.run, run_story.model())])
        before, failures = (
            set(run_story.model().failures.ruled_out),
            run_story.run.task(sub_epoch(1, 0)).failures,
        )
        failure = random.choice(FAILURES if places else FAILURES[:3])
        attempt(run_story, parallel_plan, failure)
        new = set(run_story.model().failures.ruled_out) - before
        assert new <= {parallel_plan.label}
        assert before <= set(run_story.model().failures.ruled_out)
        if new and labels(run_story):
            assert run_story.run.task(sub_epoch(1, 0)).failures == failures
        struck = {label: each.memory_kind for label, each in run_story.model().failures.ruled_out.items()}
    assert run_story.model().state is ModelState.FAILED
    assert places or not labels(run_story)
    assert fold("one", run_story.log) == run_story.state
    assert {label: each.memory_kind for label, each in run_story.model().failures.ruled_out.items()} == struck


def test_lines_count_models_per_parallel_plan_and_give_reasons() -> None:
    """The lines count models per parallel plan and give reasons; with one plan there is nothing to report."""
    run_story = story(SINGLE, CHECKPOINTING, DDP)
    assert lines(run_story.run) == []
    attempt(run_story, SINGLE, DEVICE)
    attempt(run_story, CHECKPOINTING, NOT_APPLICABLE)
    assert lines(run_story.run) == [
        "parallel plans: 1 model by single, 1 model by ddp-2",
        "single is ruled out for 1 model: out of memory of the device: CUDA out of memory",
        "checkpointing is ruled out for 1 model: no repeated block",
    ]
    attempt(run_story, DDP)
    table = {
        row.parallel_plan.label: (row.sub_epochs, row.ruled_out, row.is_next)
        for row in describe_plans(run_story.run, run_story.model())
    }
    assert table == {
        "single": (0, "out of memory of the device: CUDA out of memory", False),
        "checkpointing": (0, "no repeated block", False),
        "ddp-2": (1, "", True),
    }
    assert schedule_lines(run_story.state, run_story.run, run_story.time)[-3:] == lines(run_story.run)


@pytest.mark.parametrize("kind", [FailureKind.USER_ERROR, FailureKind.HANG])
def test_a_user_error_caused_by_a_parallel_plan_rules_out_all_but_the_last_plan(
    kind: FailureKind,
) -> None:
    """The plan may be the cause, for example if a module cannot be replicated. With the user's own loop or
    the last plan, the error ends the model."""
    failure = Failure(kind=kind, message="no such module", is_by_parallel_plan=True)
    run_story = story(DDP, FSDP, SINGLE, max_attempts=1)
    attempt(run_story, DDP, failure)
    assert labels(run_story) == ["fsdp(reshard=False)-2", "single"]
    assert run_story.run.task(sub_epoch(1, 0)).failures == 0
    attempt(run_story, FSDP, failure)
    attempt(run_story, SINGLE, failure.model_copy(update={"is_by_parallel_plan": False}))
    final = run_story.model().failures.final
    assert run_story.model().state is ModelState.FAILED
    assert final is not None
    assert (final.kind, final.is_by_parallel_plan) == (kind, False)
    named = story(DDP)
    attempt(named, DDP, failure)
    assert named.model().failures.final == failure


def test_a_crashing_parallel_plan_is_ruled_out_after_the_last_attempt() -> None:
    """One crash may be bad luck; after the last permitted attempt another plan takes over."""
    run_story = story(DDP, SINGLE, max_attempts=2)
    crash = CRASH.model_copy(update={"is_by_parallel_plan": True})
    attempt(run_story, DDP, crash)
    assert labels(run_story) == ["ddp-2", "single"]
    attempt(run_story, DDP, crash)
    assert labels(run_story) == ["single"]
    attempt(run_story, SINGLE)
    assert len(run_story.model().sub_epochs) == 1
