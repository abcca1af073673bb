"""What users ask for: to stop, resume and retry, another scheduler, to archive and delete; and the list of it."""

from __future__ import annotations

import pytest

from cerebro.contract.events import (
    ClientEvent,
    DeletionRequested,
    ExperimentArchived,
    ModelResumed,
    ModelRetried,
    ModelStopRequested,
    RunFinished,
    RunRequested,
    RunResumed,
    RunStarted,
    RunStopRequested,
    SchedulePlanned,
    SchedulerChanged,
    TaskRevoked,
)
from cerebro.contract.runs import PlannedUnit
from cerebro.contract.tasks import FailureKind, TaskResult
from cerebro.errors import IllegalEventError
from cerebro.state import ModelState, RunState, TaskState, schedule_now, waiting_for, wording
from cerebro.state.failures import MAX_REOPENED
from cerebro.state.timeline import tries
from tests.state.runs import TimedStory
from tests.state.stories import Story, joined, lost, unit, validation


def stop(model: str = "m00") -> ModelStopRequested:
    return ModelStopRequested(run="fit-1", model=model, by="ann")


def resume(model: str = "m00") -> ModelResumed:
    return ModelResumed(run="fit-1", model=model, by="ann")


def retry(model: str = "m00") -> ModelRetried:
    return ModelRetried(run="fit-1", model=model, by="ann")


def ended(outcome: str) -> RunFinished:
    return RunFinished.model_validate({"run": "fit-1", "outcome": outcome, "error": "why"})


def states(story: Story) -> dict[str, str]:
    return {model.id: str(model.state) for model in story.run.models.values()}


def facts(story: Story) -> str:
    """All but the number of events and the list of actions."""
    return repr((story.state.runs, story.state.workers, story.state.is_archived, story.state.deletion))


def failed() -> Story:
    """m00 has failed in its second unit; m01 has begun nothing."""
    story = Story()
    story.fit(max_attempts=2)
    story.train(1, 0)
    story.fail(unit(1, 1), 1, FailureKind.CRASH)
    story.fail(unit(1, 1), 1, FailureKind.USER_ERROR)
    return story


# --- models ------------------------------------------------------------------------------------------


def test_a_stopped_model_trains_no_further_and_keeps_what_it_has() -> None:
    """It is stopping while its unit runs, then stopped; nothing more of it is due."""
    story = Story()
    story.fit()
    story.train(1, 0)
    story.start(unit(1, 1), 1)
    story.tell(stop())
    assert wording.model(story.model(), story.run) == "stopping"
    story.tell(TaskRevoked(task=str(unit(1, 1)), attempt=1, worker="worker-1", reason="stopped"))
    assert wording.model(story.model(), story.run) == "stopped"
    assert (len(story.model().visits), story.model().redone) == (1, 0)
    assert story.run.progress() == (1, 5)
    assert not story.run.is_complete()
    story.epoch(1, model="m01")
    story.epoch(2, model="m01")
    assert story.run.is_complete()
    assert states(story) == {"m00": "stopped", "m01": "finished"}


def test_a_commit_that_slips_in_counts() -> None:
    """A unit that ended before it could be taken back is a visit like any other; the last one finishes the model."""
    story = Story()
    story.fit(epochs=1)
    story.train(1, 0)
    story.start(unit(1, 1), 1)
    story.tell(stop())
    story.commit(unit(1, 1), 1)
    assert story.model().state is ModelState.FINISHED


def test_validations_of_a_stopped_model_may_end() -> None:
    """What is known of its epochs is not thrown away; the last one finishes a model that was trained already."""
    story = Story()
    story.fit(validated=True, epochs=1)
    story.epoch(1)
    story.start(validation(1), 0)
    story.tell(stop())
    assert wording.model(story.model(), story.run) == "stopped"
    story.commit(validation(1), 0, TaskResult(metrics={"loss": 0.5}))
    assert story.model().validations == {1: {"loss": 0.5}}
    assert story.model().state is ModelState.FINISHED


def test_a_stopped_model_that_fails_has_failed() -> None:
    """Resuming it would not help: its unit has used up its attempts."""
    story = Story()
    story.fit()
    attempt = story.start(unit(1, 0), 0)
    story.tell(stop())
    story.break_off(unit(1, 0), 0, attempt, FailureKind.USER_ERROR)
    assert story.model().state is ModelState.FAILED
    story.tell(resume())
    assert story.model().state is ModelState.FAILED


def test_a_resumed_model_goes_on_where_it_was() -> None:
    """With the partitions that its epoch lacks."""
    story = Story()
    story.fit()
    story.train(1, 0)
    story.tell(stop(), resume())
    assert story.model().state is ModelState.ACTIVE
    assert story.model().remaining == (1,)
    story.train(1, 1)


def test_a_retried_model_has_its_attempts_counted_anew() -> None:
    """What it had committed stands; the unit that failed may fail as often as at first."""
    story = failed()
    assert story.model().state is ModelState.FAILED
    story.tell(retry())
    task = story.run.task(unit(1, 1))
    assert (task.state, task.failures, task.losses, task.failure) == (TaskState.PENDING, 0, 0, None)
    assert (story.model().state, story.model().failure) == (ModelState.ACTIVE, None)
    story.fail(unit(1, 1), 1, FailureKind.CRASH)
    assert story.model().state is ModelState.ACTIVE
    story.train(1, 1)
    assert [visit.attempt for visit in story.model().visits] == [1, 4]


def test_a_retried_model_may_lose_its_checkpoint_as_often_again() -> None:
    """Volumes are mended, too."""
    story = Story()
    story.fit()
    for _ in range(MAX_REOPENED + 1):
        story.train(1, 0)
        story.fail(unit(1, 1), 1, FailureKind.CHECKPOINT)
    assert states(story)["m00"] == "failed"
    story.tell(retry())
    for _ in range(MAX_REOPENED):
        story.fail(unit(1, 1), 1, FailureKind.CHECKPOINT)
        assert states(story)["m00"] == "active"
        story.train(1, 0)
    story.fail(unit(1, 1), 1, FailureKind.CHECKPOINT)
    assert states(story)["m00"] == "failed"


def test_where_a_retried_unit_ran_out_of_memory_is_still_known() -> None:
    """So that it is tried elsewhere, or alone."""
    story = Story()
    story.fit(max_attempts=1)
    story.fail(unit(1, 0), 0, FailureKind.OUT_OF_MEMORY)
    story.tell(retry())
    assert story.run.task(unit(1, 0)).exhausted == {"worker-0"}


# --- runs that have ended ----------------------------------------------------------------------------


def test_a_stopped_run_goes_on_when_it_is_resumed() -> None:
    """All but the models that were stopped themselves."""
    story = Story()
    story.fit()
    story.tell(
        stop("m01"), RunStopRequested(run="fit-1"), ended("stopped"), RunResumed(run="fit-1", by="bob")
    )
    assert (story.run.state, story.run.ended, story.run.error) == (RunState.RUNNING, 0.0, "")
    assert states(story) == {"m00": "active", "m01": "stopped"}
    assert story.state.active_run() is story.run
    story.train(1, 0)


def test_a_run_that_was_stopped_before_it_was_planned_is_queued_again() -> None:
    """Somebody must plan it."""
    story = Story()
    story.fit()
    request, plan = story.run.request, story.run.plan
    assert plan is not None
    story = Story()
    story.tell(RunRequested(run="fit-1", request=request), RunStopRequested(run="fit-1"), ended("stopped"))
    story.tell(RunResumed(run="fit-1"))
    assert wording.run(story.run) == "queued"
    story.tell(RunStarted(run="fit-1", plan=plan))
    assert wording.run(story.run) == "starting"


@pytest.mark.parametrize("outcome", ["stopped", "finished", "failed"])
def test_one_model_of_a_run_that_has_ended_goes_on_alone(outcome: str) -> None:
    """The others that were not at their end are stopped: nobody asked for them."""
    story = Story()
    story.fit(models=3)
    story.tell(stop("m01"), ended(outcome), resume("m00"))
    assert (story.run.state, story.run.ended, story.run.error) == (RunState.RUNNING, 0.0, "")
    assert states(story) == {"m00": "active", "m01": "stopped", "m02": "stopped"}
    story.tell(resume("m02"))
    assert states(story)["m02"] == "active"


def test_a_failed_model_of_a_failed_run_is_retried() -> None:
    """All of its models had failed; one of them is tried again."""
    story = failed()
    story.fail(unit(1, 0, "m01"), 0, FailureKind.USER_ERROR)
    story.tell(ended("failed"), retry())
    assert story.run.state is RunState.RUNNING
    assert states(story) == {"m00": "active", "m01": "failed"}
    assert not story.run.is_complete()


def test_a_run_that_no_task_could_escape_stays_failed() -> None:
    """Its data will not be better for the next model."""
    story = failed()
    story.fail(unit(1, 0, "m01"), 0, FailureKind.DATA)
    story.tell(ended("failed"))
    before = facts(story)
    story.tell(retry(), resume("m01"))
    assert facts(story) == before


def test_a_plan_is_not_followed_beyond_the_end_of_a_run() -> None:
    """It was made for the workers there were."""
    story = Story()
    story.fit()
    order = (PlannedUnit("worker-0", "m00", 1, 0, 0.0),)
    plan = SchedulePlanned(
        run="fit-1", source="x", order=order, makespan_s=1, dispatch_s=2, lower_bound_s=1, seconds=0
    )
    story.tell(plan, ended("stopped"))
    assert story.run.planned is not None
    story.tell(RunResumed(run="fit-1"))
    assert story.run.planned is None


def test_the_clock_of_a_schedule_stands_still_while_its_run_has_ended() -> None:
    """A night between the two halves of a run is neither makespan nor idle time."""
    story = TimedStory()
    story.fit(models=1, partitions=1, epochs=2)
    story.runs(unit(1, 0), 0, 0.0, 4.0)
    story.report(1)
    story.at(5.0, RunStopRequested(run="fit-1"), ended("stopped"))
    story.at(1005.0, RunResumed(run="fit-1"))
    story.runs(unit(2, 0), 0, 1006.0, 1010.0)
    found = schedule_now(story.state, story.run, story.zero + 1010.0)
    assert found is not None
    assert (found.makespan_s, found.lower_bound_s, found.idle_s, found.worker_s) == (10.0, 8.0, 2.0, 10.0)
    story.report(2)
    assert story.run.epochs[-1].makespan_s == 10.0
    assert story.run.epochs[-1].idle_s["worker-0"] == 2.0


# --- what comes too late -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wish",
    [
        stop("m01"),
        stop("m99"),
        resume("m00"),
        resume("m01"),
        resume("m99"),
        retry("m00"),
        retry("m01"),
        RunResumed(run="fit-1"),
    ],
    ids=lambda wish: f"{wish.type}-{getattr(wish, 'model', '')}",
)
def test_a_wish_that_comes_too_late_changes_nothing(wish: ClientEvent) -> None:
    """m00 is active, m01 has finished, there is no m99, and the run goes on. The list tells of it all the same."""
    story = Story()
    story.fit(epochs=1)
    story.epoch(1, model="m01")
    before = facts(story)
    story.tell(wish)
    assert facts(story) == before
    assert story.state.actions[-1].is_late


@pytest.mark.parametrize("wish", [stop(), RunStopRequested(run="fit-1"), RunResumed(run="fit-1")])
@pytest.mark.parametrize("outcome", ["finished", "failed"])
def test_a_run_that_has_ended_is_not_stopped_and_not_resumed_as_a_whole(
    wish: ClientEvent, outcome: str
) -> None:
    """It has come to its own end."""
    story = Story()
    story.fit()
    story.tell(ended(outcome))
    before = facts(story)
    story.tell(wish)
    assert facts(story) == before


@pytest.mark.parametrize(
    "wish", [RunResumed(run="fit-1"), resume(), retry("m01")], ids=lambda wish: wish.type
)
def test_a_run_is_not_opened_again_beside_another_one(wish: ClientEvent) -> None:
    """The one that was requested since would wait for it, and workers would have both."""
    story = Story()
    story.fit(max_attempts=1)
    story.fail(unit(1, 0, "m01"), 0, FailureKind.USER_ERROR)
    story.tell(ended("stopped"), RunRequested(run="fit-2", request=story.run.request))
    before = facts(story)
    story.tell(wish)
    assert facts(story) == before
    assert story.state.actions[-1].is_late
    story.tell(RunFinished(run="fit-2", outcome="stopped"), wish)
    assert story.state.active_run() is story.state.runs["fit-1"]
    assert not story.state.actions[-1].is_late


def test_a_wish_for_a_run_that_is_not_there_is_refused() -> None:
    """The store does not take it, so it means a foreign writer."""
    story = Story()
    with pytest.raises(IllegalEventError, match="no run 'fit-1'"):
        story.tell(stop())
    assert story.state.actions == []


# --- scheduler, archive, deletion --------------------------------------------------------------------


def test_a_changed_scheduler_replaces_the_plan() -> None:
    """From then on; what the client asked for at first stays known. A run that trains nothing has none."""
    story = Story()
    story.etl()
    story.fit()
    assert (story.run.scheduler, story.run.planner) == ("lrptw", True)
    story.tell(SchedulerChanged(run="fit-1", scheduler="my-policy", planner=False, by="ann"))
    assert (story.run.scheduler, story.run.planner, story.run.planned) == ("my-policy", False, None)
    story.tell(SchedulerChanged(run="etl-1", scheduler="random"))
    assert story.state.runs["etl-1"].scheduler == ""
    assert [action.is_late for action in story.state.actions[-2:]] == [False, True]


def test_archiving_changes_nothing_else() -> None:
    """And can be undone."""
    story = Story()
    story.fit()
    runs = repr(story.state.runs)
    for is_archived in (True, False):
        story.tell(ExperimentArchived(is_archived=is_archived, by="ann"))
        assert story.state.is_archived is is_archived
    assert repr(story.state.runs) == runs


def test_an_experiment_is_deleted_when_nothing_is_open_and_nothing_comes_after() -> None:
    """Neither a new run nor an old one that is resumed."""
    story = Story()
    story.fit()
    with pytest.raises(IllegalEventError, match="while fit-1 is running"):
        story.tell(DeletionRequested(by="ann"))
    story.tell(ended("stopped"), DeletionRequested(by="ann"))
    assert story.state.deletion is not None
    assert story.state.deletion.by == "ann"
    before = facts(story)
    story.tell(RunResumed(run="fit-1"), resume(), retry(), DeletionRequested(by="bob"))
    assert facts(story) == before
    with pytest.raises(IllegalEventError, match="being deleted"):
        story.tell(RunRequested(run="fit-2", request=story.run.request))


# --- who asked for what ------------------------------------------------------------------------------


def test_every_wish_is_in_the_list() -> None:
    """In order, with who, what and when."""
    story = Story(workers=0)
    story.fit()
    story.tell(stop(), ExperimentArchived(is_archived=True, by="bob"), stop())
    told = [(action.seq, action.by, action.what, action.is_late) for action in story.state.actions]
    assert told == [
        (1, "", "requested fit-1", False),
        (3, "ann", "stopped model m00", False),
        (4, "bob", "archived the experiment", False),
        (5, "ann", "stopped model m00", True),
    ]
    assert [action.time for action in story.state.actions] == [
        event.time for event in story.log if event.seq != 2
    ]
    assert story.state.actions[1].model == "m00"


# --- what others make of it --------------------------------------------------------------------------


def test_nobody_waits_for_what_a_stopped_model_would_read() -> None:
    """The partition that is away is only its concern."""
    story = Story()
    story.fit(epochs=1)
    story.tell(lost(1))
    story.train(1, 0)
    assert "worker-1" in waiting_for(story.state, story.run)
    story.tell(stop("m00"), stop("m01"))
    assert waiting_for(story.state, story.run) == ""
    story.tell(joined(1, incarnation="b"))


def test_a_schedule_does_not_wait_for_a_stopped_model() -> None:
    """The epoch shown is that of the slowest one that goes on."""
    story = TimedStory()
    story.fit(epochs=2, partitions=1)
    story.runs(unit(1, 0), 0, 0.0, 4.0)
    story.runs(unit(2, 0), 0, 4.0, 8.0)
    story.tell(stop("m01"))
    found = schedule_now(story.state, story.run, story.zero + 20.0)
    assert found is not None
    assert (found.epoch, found.makespan_s, found.is_growing) == (2, 8.0, False)


def test_every_attempt_can_be_told() -> None:
    """Those in vain from the tasks, those committed from their visits, each once."""
    story = failed()
    story.tell(retry())
    story.train(1, 1)
    story.fail(unit(1, 0, "m01"), 0, FailureKind.CRASH)
    story.start(unit(1, 0, "m01"), 0)
    told = sorted((str(t.key), t.attempt.number, t.attempt.outcome, bool(t.visit)) for t in tries(story.run))
    assert told == [
        ("fit-1/train/m00/e1/p0", 1, "committed", True),
        ("fit-1/train/m00/e1/p1", 1, "crash", False),
        ("fit-1/train/m00/e1/p1", 2, "user_error", False),
        ("fit-1/train/m00/e1/p1", 3, "committed", True),
        ("fit-1/train/m01/e1/p0", 1, "crash", False),
        ("fit-1/train/m01/e1/p0", 2, "", False),
    ]
    assert len(list(tries(story.run, "m01"))) == 2
