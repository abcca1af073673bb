"""The fold of the log: what it takes in, what it refuses, and that a refusal leaves no trace."""

from __future__ import annotations

import copy
import dataclasses
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import (
    DeletionRequested,
    Event,
    ExperimentArchived,
    ModelResumed,
    ModelRetried,
    ModelStopRequested,
    RunFinished,
    RunPaused,
    RunRequested,
    RunResumed,
    RunStarted,
    RunStopRequested,
    SchedulerChanged,
    TaskAssigned,
    TaskCommitted,
    TaskFailed,
    TaskRevoked,
    TaskStarted,
)
from cerebro.contract.runs import EvaluatePlan, EvaluateRequest
from cerebro.contract.tasks import CheckpointRef, Failure, FailureKind, TaskResult
from cerebro.errors import IllegalEventError
from cerebro.state import ExperimentState, ModelState, RunState, TaskKey, TaskState
from cerebro.state.experiment import fold
from cerebro.state.runs import ENDED_RUN, OPEN_RUN, TRANSITIONS
from cerebro.state.tasks import OPEN
from cerebro.state.tasks import TRANSITIONS as TASK_TRANSITIONS
from tests.state.soundness import assert_sound
from tests.state.stories import DATASET, Story, joined, lost, unit, validation

# --- any log -----------------------------------------------------------------------------------------

KEYS = [
    *(str(unit(e, p, m)) for e, p, m in product((1, 2, 3), (0, 1, 7), ("m00", "m01"))),
    *(str(validation(e)) for e in (1, 2)),
    str(unit(1, 0, "m99")),
    "fit-9/train/m00/e1/p0",
    "etl-1/etl/train/p0",
    "test-1/test/m00/p0",
    "fit-1/etl/train/p0",
    "fit-1/test/m00/p0",
    "fit-1/valid/m99/e1",
]


@st.composite
def wishes(draw: st.DrawFn) -> Any:
    """What a user may ask for, whether it makes sense or not."""
    run = draw(st.sampled_from(["fit-1", "fit-1", "fit-1", "fit-2", "fit-9"]))
    model = draw(st.sampled_from(["m00", "m01", "m99"]))
    return draw(
        st.sampled_from(
            [
                *[ModelStopRequested(run=run, model=model)] * 2,
                *[ModelResumed(run=run, model=model)] * 3,
                *[ModelRetried(run=run, model=model)] * 3,
                SchedulerChanged(run=run, scheduler="random"),
                ExperimentArchived(is_archived=True),
                DeletionRequested(),
            ]
        )
    )


@st.composite
def events(draw: st.DrawFn, state: ExperimentState) -> Any:
    """An event that might follow, or might not: most name the attempt and worker that the state expects."""
    kind = draw(st.sampled_from([*["task"] * 8, "run", "worker", "worker", "wish"]))
    if kind == "run":
        run = draw(st.sampled_from(["fit-1", "fit-1", "fit-2", "fit-9"]))
        return draw(
            st.sampled_from(
                [
                    RunPaused(run=run, reason="full"),
                    RunResumed(run=run),
                    RunStopRequested(run=run),
                    RunFinished(run=run, outcome="finished"),
                    state.runs["fit-1"].plan and RunStarted(run=run, plan=state.runs["fit-1"].plan),
                    RunRequested(run=run, request=state.runs["fit-1"].request),
                ]
            )
        ) or RunResumed(run=run)
    if kind == "wish":
        return draw(wishes())
    number = draw(st.integers(0, 2))
    if kind == "worker":
        return draw(st.sampled_from([joined(number, incarnation="b"), lost(number), joined(number)]))
    open_now = [str(t.key) for run in state.runs.values() for t in run.open_tasks()]
    key = draw(st.sampled_from([*open_now * 4, *KEYS]))
    run_state = state.runs.get(key.split("/")[0])
    known = run_state.tasks.get(key) if run_state else None
    attempt = (known.attempt if known else 0) + draw(st.sampled_from([0, 0, 0, 1, 1, 2]))
    worker = draw(st.sampled_from([known.worker] * 3 if known and known.worker else [f"worker-{number}"]))
    named = {"task": key, "attempt": attempt, "worker": worker or f"worker-{number}"}
    result = TaskResult(
        rows=1, metrics={"loss": 0.5}, checkpoint=CheckpointRef(name=f"c{state.seq}", checksum="-", size=1)
    )
    failure = Failure(kind=draw(st.sampled_from(list(FailureKind))), message="boom")
    return draw(
        st.sampled_from(
            [
                TaskAssigned.model_validate(named),
                TaskStarted.model_validate(named),
                TaskCommitted.model_validate({**named, "result": result}),
                TaskFailed.model_validate({**named, "failure": failure}),
                TaskRevoked.model_validate({**named, "reason": "idle"}),
            ]
        )
    )


@settings(deadline=None, max_examples=60)
@given(data=st.data(), validated=st.booleans())
def test_an_illegal_event_raises_and_changes_nothing(data: st.DataObject, validated: bool) -> None:
    """Any event, in any state, is either applied or refused whole, and with the one error that is made for it."""
    story = Story()
    story.fit(validated=validated)
    state = story.state
    for _ in range(data.draw(st.integers(5, 40))):
        event = data.draw(events(state))
        # Compared as text: every field shows there, and copying the state each time takes ten times as long.
        before, seq = repr(state), state.seq
        try:
            state.apply(event)
        except IllegalEventError:
            assert repr(state) == before
        else:
            assert state.seq == seq + 1
            assert_late_wishes_change_nothing(state, before)
        assert_sound(state)


def assert_late_wishes_change_nothing(state: ExperimentState, before: str) -> None:
    """The newest event's wish, if it was one and came too late, shows in the list alone."""
    if state.actions and state.actions[-1].seq == state.seq and state.actions[-1].is_late:
        unheard = dataclasses.replace(state, seq=state.seq - 1, actions=state.actions[:-1])
        assert repr(unheard) == before


def test_the_same_log_folds_to_the_same_state() -> None:
    """A fold from the start equals the state that grew with the log."""
    story = Story()
    story.etl()
    story.fit(validated=True)
    story.epoch(1)
    story.validate(1)
    assert fold("one", story.log) == story.state


@pytest.mark.parametrize("seq", [1, 2, 4, 99])
def test_a_gap_in_the_log_is_refused(seq: int) -> None:
    """Neither an event twice nor one too far on."""
    story = Story()
    before = copy.deepcopy(story.state)
    with pytest.raises(IllegalEventError, match="follows event 2"):
        story.state.apply(joined(5).model_copy(update={"seq": seq}))
    assert story.state == before


# --- runs --------------------------------------------------------------------------------------------


def run_in(state: RunState) -> Story:
    """A story whose fit run is in a state."""
    story = Story()
    story.fit()
    if state is RunState.QUEUED:
        request = story.run.request
        story = Story()
        story.tell(RunRequested(run="fit-1", request=request))
    elif state is RunState.PAUSED:
        story.tell(RunPaused(run="fit-1", reason="full", needs_bytes=5))
    elif state is RunState.STOPPING:
        story.tell(RunStopRequested(run="fit-1"))
    elif state in ENDED_RUN:
        story.tell(RunFinished.model_validate({"run": "fit-1", "outcome": str(state), "error": "why"}))
    assert story.run.state is state
    return story


@pytest.mark.parametrize("state", list(RunState))
@pytest.mark.parametrize("kind", ["RunStarted", "RunPaused", "RunResumed", "RunStopRequested", "RunFinished"])
def test_runs_move_by_the_table_and_no_other_way(state: RunState, kind: str) -> None:
    """Each pair of state and event: the table's target, no effect for a wish that came too late, else a refusal."""
    story, plan = run_in(state), run_in(RunState.RUNNING).run.plan
    event: Event = {
        "RunStarted": RunStarted(run="fit-1", plan=plan) if plan else RunResumed(run="fit-1"),
        "RunPaused": RunPaused(run="fit-1", reason="full"),
        "RunResumed": RunResumed(run="fit-1"),
        "RunStopRequested": RunStopRequested(run="fit-1"),
        "RunFinished": RunFinished(run="fit-1", outcome="stopped"),
    }[kind]
    targets = TRANSITIONS.get((state, kind))
    if kind == "RunFinished" and state in OPEN_RUN:
        targets = frozenset({RunState.STOPPED})
    if targets is None and kind not in ("RunResumed", "RunStopRequested"):
        with pytest.raises(IllegalEventError, match=f"{kind} of fit-1 while it is {state}"):
            story.tell(event)
    else:
        story.tell(event)
    assert story.run.state in (targets or {state})


def test_a_run_does_not_end_while_tasks_are_open() -> None:
    """Its attempts are taken back first."""
    story = Story()
    story.fit()
    story.start(unit(1, 0), 0)
    with pytest.raises(IllegalEventError, match="tasks are open"):
        story.tell(RunFinished(run="fit-1", outcome="stopped"))


def test_resuming_forgets_why_it_was_paused() -> None:
    """Reason and missing room belong to the pause."""
    story = run_in(RunState.PAUSED)
    assert (story.run.reason, story.run.needs_bytes) == ("full", 5)
    story.tell(RunResumed(run="fit-1"))
    assert (story.run.reason, story.run.needs_bytes) == ("", 0)


def test_the_oldest_open_run_is_the_active_one() -> None:
    """A later request waits for the end of the one before."""
    story = Story()
    story.fit()
    story.tell(RunRequested(run="fit-2", request=story.run.request))
    assert story.state.active_run() is story.run
    story.tell(RunFinished(run="fit-1", outcome="finished"))
    assert story.state.active_run() is story.state.runs["fit-2"]


# --- tasks -------------------------------------------------------------------------------------------

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


# --- the invariants of model hopping -----------------------------------------------------------------


def refused(story: Story, event: Event, match: str) -> None:
    """The event is illegal and without effect."""
    before = copy.deepcopy(story.state)
    with pytest.raises(IllegalEventError, match=match):
        story.tell(event)
    assert story.state == before


def assigned(key: TaskKey, worker: int, attempt: int = 1) -> TaskAssigned:
    return TaskAssigned(task=str(key), attempt=attempt, worker=f"worker-{worker}")


def test_a_model_is_at_one_worker_at_a_time() -> None:
    """Isolation."""
    story = Story()
    story.fit()
    story.assign(unit(1, 0), 0)
    refused(story, assigned(unit(1, 1), 1), "isolation")


def test_a_model_visits_each_partition_once_per_epoch() -> None:
    """Completeness: neither a partition again, nor one of the epoch to come."""
    story = Story()
    story.fit()
    story.train(1, 0)
    refused(story, assigned(unit(1, 0), 0, 2), "while it is committed")
    refused(story, assigned(unit(2, 0), 0), "completeness")
    refused(story, assigned(unit(1, 7), 0), "completeness")
    story.train(1, 1)
    story.train(2, 0)


def test_a_unit_goes_to_a_worker_that_holds_its_partition() -> None:
    """Data does not move."""
    story = Story()
    story.fit()
    refused(story, assigned(unit(1, 0), 1), "does not hold")


def test_a_worker_takes_at_most_one_task_ahead() -> None:
    """One runs, one waits; the one that waits does not overtake."""
    story = Story(workers=1)
    story.fit(models=3, partitions=1)
    story.assign(unit(1, 0, "m00"), 0)
    story.assign(unit(1, 0, "m01"), 0)
    refused(story, assigned(unit(1, 0, "m02"), 0), "which has")
    started = TaskStarted(task=str(unit(1, 0, "m01")), attempt=1, worker="worker-0")
    refused(story, started, "is open there")
    assert {str(t.key) for t in story.run.open_tasks()} == set(story.state.workers["worker-0"].open_tasks)
    assert all(task.state in OPEN for task in story.run.open_tasks())


def test_a_lost_worker_gets_nothing_and_joins_again_empty_handed() -> None:
    """Its tasks are taken back before it may return; it may not join twice."""
    story = Story()
    story.fit()
    story.start(unit(1, 0), 0)
    refused(story, joined(0, incarnation="b"), "joined twice")
    story.tell(lost(0))
    refused(story, assigned(unit(1, 0, "m01"), 0), "is lost")
    refused(story, lost(0), "without having joined")
    refused(story, joined(0, incarnation="b"), "are open there")
    story.tell(TaskRevoked(task=str(unit(1, 0)), attempt=1, worker="worker-0", reason="lost"))
    story.tell(joined(0, incarnation="b", partitions=()))
    assert story.state.holders(DATASET, 0) == []


def test_a_process_that_was_only_silent_keeps_what_it_made() -> None:
    """Its registration lists what it had when it started; what it committed since counts, too."""
    story = Story()
    story.state.workers["worker-0"].holdings.add((DATASET, 5))
    story.tell(lost(0), joined(0))
    assert (DATASET, 5) in story.state.workers["worker-0"].holdings


def test_the_result_of_a_failed_model_that_still_runs_is_kept() -> None:
    """A running unit is left to end by itself; its commit is legal though its model was given up."""
    story = Story()
    story.fit(validated=True)
    story.epoch(1)
    story.start(unit(2, 0), 0)
    story.fail(validation(1), 1, FailureKind.USER_ERROR)
    assert story.model().state is ModelState.FAILED
    story.tell(
        TaskCommitted(
            task=str(unit(2, 0)),
            attempt=1,
            worker="worker-0",
            result=TaskResult(rows=1, checkpoint=CheckpointRef(name="c", checksum="-", size=1)),
        )
    )
    assert story.run.open_tasks() == []


# --- data sets and evaluations -----------------------------------------------------------------------


def test_a_data_set_is_complete_once_every_partition_is_committed() -> None:
    """Its rows are known per split and partition; training partitions are held by who made them."""
    story = Story()
    story.etl(splits={"train": 10, "valid": 4})
    dataset = story.state.newest_dataset()
    assert dataset is not None
    assert dataset.is_complete
    assert dataset.partitions("train") == {0: 10, 1: 10}
    assert dataset.partitions("test") == {}
    assert [w.name for w in story.state.holders(DATASET, 1)] == ["worker-1"]


def test_the_same_data_set_again_has_nothing_to_do() -> None:
    """Unless a training partition has no holder any more: that one is made anew."""
    story = Story()
    story.etl()
    again = story.state.runs["etl-1"]
    story.tell(
        RunRequested(run="etl-2", request=again.request),
        RunStarted(run="etl-2", plan=again.plan) if again.plan else RunResumed(run="etl-2"),
    )
    assert story.state.runs["etl-2"].is_complete()
    story.tell(
        RunFinished(run="etl-2", outcome="finished"), lost(1), joined(1, incarnation="b", partitions=())
    )
    assert again.plan is not None
    story.tell(RunRequested(run="etl-3", request=again.request), RunStarted(run="etl-3", plan=again.plan))
    assert list(story.state.runs["etl-3"].tasks) == ["etl-3/etl/train/p1"]


def test_a_test_run_has_a_task_per_model_and_partition() -> None:
    """It is complete when all are committed; one that fails is fatal."""
    story = Story()
    story.tell(
        RunRequested(run="test-1", request=EvaluateRequest(kind="test", fit="fit-1", split="test")),
        RunStarted(
            run="test-1",
            plan=EvaluatePlan(
                kind="test",
                dataset=DATASET,
                fit="fit-1",
                models={"m00": 1, "m01": 2},
                partitions={0: 5, 1: 6},
            ),
        ),
    )
    run = story.state.runs["test-1"]
    assert list(run.tasks) == [f"test-1/test/{m}/p{p}" for m in ("m00", "m01") for p in (0, 1)]
    for key in list(run.tasks)[:3]:
        story.do(TaskKey.parse(key), 0, TaskResult(rows=1))
    assert not run.is_complete()
    assert run.progress() == (3, 4)
    story.fail(TaskKey.parse("test-1/test/m01/p1"), 1, FailureKind.USER_ERROR)
    assert run.fatal is not None
