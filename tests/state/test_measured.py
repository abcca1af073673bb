"""Inspections and trials add information to a run and never end it."""

from __future__ import annotations

import pytest

from cerebro.contract.events import (
    ModelChanged,
    TaskAssigned,
    TaskCommitted,
    TaskFailed,
    TaskStarted,
    TrialsRecalled,
)
from cerebro.contract.parallel_plans import SINGLE, ParallelPlan
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.results import TaskResult
from cerebro.contract.trials import Cause, Inspection, KnownParallelPlan, ModelGroup, TrialOutcome
from cerebro.errors import IllegalEventError
from cerebro.state import ModelState, RunState, TaskKey, TaskState
from cerebro.state.experiment import fold
from cerebro.state.models.parallel_plans import describe_plans, has_more_than_one
from tests.state.stories import Story

INSPECT = TaskKey(run="fit-1", kind="inspect")
DDP = TaskKey(run="fit-1", kind="trial", group="g00", parallel_plan="ddp-2")
FOUND = Inspection(
    groups=(
        ModelGroup(
            id="g00",
            models=("m00", "m01"),
            parallel_plans=(
                KnownParallelPlan(id="single", parallel_plan=SINGLE),
                KnownParallelPlan(id="ddp-2", parallel_plan=ParallelPlan(technique="ddp", size=2)),
            ),
        ),
    ),
    torch="2.13.0",
)
OUTCOME = TrialOutcome(batch_s=0.5, sigma=0.03, batches=10, is_verified=True)


def started(story: Story, key: TaskKey, devices: tuple[int, ...] = ()) -> dict[str, object]:
    """Start an attempt at worker 0; return its identifying fields."""
    named = {"task": str(key), "attempt": story.run.task(key).attempt + 1, "worker": "worker-0"}
    story.append(
        TaskAssigned.model_validate({**named, "devices": devices}), TaskStarted.model_validate(named)
    )
    return named


def inspected(*parallel_plans: ParallelPlan) -> Story:
    """An inspected fit on workers with two devices."""
    story = Story(devices=2)
    story.fit(parallel_plans=parallel_plans)
    named = started(story, INSPECT)
    story.append(TaskCommitted.model_validate({**named, "result": TaskResult(inspection=FOUND)}))
    return story


@pytest.mark.parametrize(
    "kind", [k for k in FailureKind if k not in ("preempted", "storage_full", "checkpoint", "device")]
)
def test_a_failed_trial_rules_out_its_parallel_plan_and_fails_no_run(kind: FailureKind) -> None:
    """A failed trial has no second attempt, fails no model or run, and reserves no worker."""
    story = inspected()
    named = started(story, DDP, (0, 1))
    story.append(TaskFailed.model_validate({**named, "failure": Failure(kind=kind, message="no memory")}))
    run = story.run
    assert "no memory" in run.trials.outcomes["g00", "ddp-2"].reason
    assert run.task(DDP).state is TaskState.FAILED
    assert (run.state, run.failures.fatal, run.tasks.exhausted) == (RunState.RUNNING, None, set())
    assert all(model.failures.final is None for model in run.models.values())


def test_a_trial_with_an_unknown_plan_or_wrong_devices_is_refused() -> None:
    """An unknown group, an unknown parallel plan, or the wrong number of devices."""
    story = inspected()
    other = DDP._replace(group="g01")
    for key, devices in ((other, (0, 1)), (DDP._replace(parallel_plan="fsdp-2"), (0, 1)), (DDP, (0,))):
        with pytest.raises(IllegalEventError):
            story.append(TaskAssigned(task=str(key), attempt=1, worker="worker-0", devices=devices))


def test_recalled_outcomes_do_not_replace_own_ones() -> None:
    """They are marked as earlier results. Unknown parallel plans and results before the inspection are refused."""
    story = inspected()
    named = started(story, DDP, (0, 1))
    story.append(TaskCommitted.model_validate({**named, "result": TaskResult(trial=OUTCOME)}))
    earlier = TrialOutcome(batch_s=1.0)
    story.append(TrialsRecalled(run="fit-1", outcomes={"g00/single": earlier, "g00/ddp-2": earlier}))
    assert story.run.trials.outcomes["g00", "ddp-2"] == OUTCOME
    assert story.run.trials.outcomes["g00", "single"] == earlier.model_copy(update={"is_recalled": True})
    assert story.run.trials.has_recalled
    with pytest.raises(IllegalEventError, match="not known"):
        story.append(TrialsRecalled(run="fit-1", outcomes={"g00/fsdp-2": earlier}))
    fresh = Story(devices=2)
    fresh.fit()
    with pytest.raises(IllegalEventError, match="nobody has inspected"):
        fresh.append(TrialsRecalled(run="fit-1"))


def test_each_parallel_plan_is_described_with_its_trial() -> None:
    """The result includes parallel plans that the run does not list, and the reason of a failed trial."""
    story = inspected()
    named = started(story, DDP, (0, 1))
    assert not has_more_than_one(story.run, story.model())
    story.append(TaskCommitted.model_validate({**named, "result": TaskResult(trial=OUTCOME)}))
    assert has_more_than_one(story.run, story.model())
    rows = {
        row.parallel_plan.label: (row.batch_s, row.is_verified, row.ruled_out)
        for row in describe_plans(story.run, story.model())
    }
    assert rows == {"single": (0.0, None, ""), "ddp-2": (0.5, True, "")}
    single = TaskKey(run="fit-1", kind="trial", group="g00", parallel_plan="single")
    failed = started(story, single, (0,))
    outcome = TrialOutcome(reason="it needs 3 GiB", cause="device_memory")
    story.append(TaskCommitted.model_validate({**failed, "result": TaskResult(trial=outcome)}))
    (first, _) = describe_plans(story.run, story.model("m01"))
    assert (first.parallel_plan.label, first.ruled_out, first.is_verified) == (
        "single",
        "it needs 3 GiB",
        None,
    )


@pytest.mark.parametrize(
    ("cause", "strikes"),
    [("gradient", True), ("not_applicable", True), ("device_memory", True), ("failure", False), ("", False)],
)
def test_a_trial_rules_out_its_plan_only_by_a_conclusive_failure(cause: Cause, strikes: bool) -> None:
    """A wrong gradient rules it out for all models of the group; a crash or lack of host memory does not."""
    story = inspected(SINGLE, ParallelPlan(technique="ddp", size=2))
    named = started(story, DDP, (0, 1))
    outcome = TrialOutcome(reason="the gradient is another one", cause=cause)
    story.append(TaskCommitted.model_validate({**named, "result": TaskResult(trial=outcome)}))
    for name in ("m00", "m01"):
        assert set(story.model(name).failures.ruled_out) == ({"ddp-2"} if strikes else set())
        assert story.model(name).state is ModelState.ACTIVE
    assert fold("one", story.log) == story.state


def test_a_trial_does_not_apply_to_models_changed_since() -> None:
    """With another batch size a ruled-out parallel plan may fit."""
    ddp = ParallelPlan(technique="ddp", size=2)
    story = inspected(SINGLE, ddp)
    story.append(ModelChanged(run="fit-1", model="m00", hyperparams={"batch_size": 2}))
    named = started(story, DDP, (0, 1))
    bad = TrialOutcome(reason="CUDA out of memory", cause="device_memory")
    story.append(TaskCommitted.model_validate({**named, "result": TaskResult(trial=bad)}))
    assert set(story.model("m01").failures.ruled_out) == {ddp.label}
    assert story.model("m00").failures.ruled_out == {}
