"""Which commands an experiment's state allows, and why others are refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cerebro import Experiment
from cerebro.client.session import Session
from cerebro.commands.command import Command
from cerebro.commands.command_events import events_of
from cerebro.commands.rules import CommandKind, allowed, resumable, stopped_text
from cerebro.commands.selection import target_run
from cerebro.contract.events import (
    DeletionRequested,
    ExperimentArchived,
    ModelResumed,
    ModelRetried,
    ModelStopRequested,
    PriorityChanged,
    RunFinished,
    RunPaused,
    RunRequested,
    RunResumed,
    RunStopRequested,
    SchedulerChanged,
)
from cerebro.contract.priority import HIGH, LOW, NORMAL
from cerebro.contract.records import ExperimentRecord, Locator, Locators
from cerebro.contract.runs import EtlRequest
from cerebro.contract.tasks.failures import FailureKind
from cerebro.errors import BadRequestError, CerebroError, ConflictError, SearchSpaceError
from tests.state.stories import SHA, Story, sub_epoch
from tests.state.test_beside import evaluation

STOPPED = RunFinished(run="fit-1", outcome="stopped")
FINISHED = RunFinished(run="fit-1", outcome="finished")


@pytest.fixture
def story() -> Story:
    """A running fit of two models."""
    story = Story()
    story.fit(models=2)
    return story


def command(kind: CommandKind, model: str = "", **fields: Any) -> Command:
    """Build a command for at most one model."""
    return Command(kind=kind, models=(model,) if model else (), **fields)


def refusal(story: Story, kind: CommandKind, model: str = "", **fields: Any) -> str:
    """Return why a command is refused; it is not in `allowed` either."""
    state = story.state
    run = target_run(kind, state, None)
    offered = allowed(state, run, run.models[model] if run and model else None)
    assert kind not in offered or fields
    with pytest.raises(CerebroError) as refused:
        events_of(command(kind, model, **fields), state, by="ann")
    return str(refused.value)


def event(story: Story, kind: CommandKind, model: str = "", **fields: Any) -> object:
    """Return the event of an allowed command; the fold accepts it."""
    run = target_run(kind, story.state, None)
    assert kind in allowed(story.state, run, run.models[model] if run and model else None)
    (event,) = events_of(command(kind, model, **fields), story.state, by="ann")
    story.append(event)
    assert not story.state.commands[-1].is_late
    return event


def test_a_model_is_stopped_and_resumed(story: Story) -> None:
    """The error names the possible commands."""
    assert event(story, CommandKind.STOP_MODEL, "m00") == ModelStopRequested(
        run="fit-1", model="m00", by="ann"
    )
    assert refusal(story, CommandKind.STOP_MODEL, "m00") == (
        "it is not possible to stop the model: model m00 of fit-1 is stopped; possible now: resume the model"
    )
    assert event(story, CommandKind.RESUME_MODEL, "m00") == ModelResumed(
        run="fit-1", model="m00", by="ann", can_reopen=True
    )
    assert "possible now: stop the model" in refusal(story, CommandKind.RESUME_MODEL, "m00")


def test_a_failed_model_is_retried(story: Story) -> None:
    """Also after its run has ended."""
    assert "possible now: stop the model" in refusal(story, CommandKind.RETRY_MODEL, "m00")
    story.fail(sub_epoch(1, 0), 0, FailureKind.USER_ERROR)
    assert "possible now: retry the model" in refusal(story, CommandKind.RESUME_MODEL, "m00")
    story.append(ModelStopRequested(run="fit-1", model="m01"))
    story.append(STOPPED)
    assert event(story, CommandKind.RETRY_MODEL, "m00") == ModelRetried(
        run="fit-1", model="m00", by="ann", can_reopen=True
    )


def test_a_run_is_stopped_and_resumed(story: Story) -> None:
    """A pending stop blocks a resume; a stopped run resumes; a finished run does not."""
    assert "fit-1 is" in refusal(story, CommandKind.RESUME_RUN)
    assert event(story, CommandKind.STOP_RUN) == RunStopRequested(run="fit-1", by="ann")
    for kind in (CommandKind.STOP_RUN, CommandKind.RESUME_RUN, CommandKind.SET_SCHEDULER):
        assert "fit-1 is stopping" in refusal(story, kind, scheduler="fifo")
    assert "fit-1 is stopping" in refusal(story, CommandKind.STOP_MODEL, "m00")
    story.append(STOPPED)
    assert event(story, CommandKind.RESUME_RUN) == RunResumed(run="fit-1", by="ann", can_reopen=True)
    story.append(FINISHED)
    assert "fit-1 is finished" in refusal(story, CommandKind.RESUME_RUN)


def test_resume_without_a_name_finds_the_stopped_run(story: Story) -> None:
    """Also after later runs. A paused run comes first; without a candidate the error says so."""
    event(story, CommandKind.STOP_RUN)
    story.append(STOPPED)
    story.append(RunRequested(run="etl-9", request=EtlRequest(code=SHA, code_fingerprint=SHA)))
    assert "etl-9 is queued" in refusal(story, CommandKind.RESUME_RUN)
    story.append(RunFinished(run="etl-9", outcome="finished"))
    assert resumable(story.state) is story.run
    assert event(story, CommandKind.RESUME_RUN) == RunResumed(run="fit-1", by="ann", can_reopen=True)
    story.append(RunPaused(run="fit-1", reason="no room", needs_bytes=1))
    assert event(story, CommandKind.RESUME_RUN) == RunResumed(run="fit-1", by="ann", can_reopen=True)


@pytest.mark.parametrize("kind", [CommandKind.STOP_RUN, CommandKind.PRIORITIZE])
def test_commands_for_an_open_run_report_that_no_run_is_open(story: Story, kind: CommandKind) -> None:
    """Without a run name, the newest test is not meant."""
    story.append(FINISHED, evaluation(1), RunFinished(run="test-1", outcome="finished"))
    assert refusal(story, kind, priority="high").endswith(
        "no run of experiment 'one' is open (test-1 is finished)"
    )
    with pytest.raises(ConflictError, match="fit-1 is finished"):
        events_of(command(kind, run="fit-1", priority="high"), story.state, by="ann")


def test_a_stopped_run_is_described_with_its_user_and_the_resume_command(story: Story) -> None:
    """`run_fit` warns, since a script would otherwise test half-trained models unnoticed."""
    story.train(1, 0)
    event(story, CommandKind.STOP_RUN)
    story.append(STOPPED)
    assert stopped_text(story.state, story.run) == (
        "fit-1 of experiment 'one' was stopped by ann after 1 of 8 tasks: resume it with "
        "Experiment.attach('one').resume('fit-1') or `cerebro resume one --run fit-1`"
    )


def test_an_unknown_scheduler_is_refused(story: Story) -> None:
    """For a fit that can still run."""
    changed = SchedulerChanged(run="fit-1", scheduler="fifo", planner=False, by="ann")
    assert event(story, CommandKind.SET_SCHEDULER, scheduler="fifo", planner=False) == changed
    with pytest.raises(SearchSpaceError, match=r"no scheduler 'best': choose one of .*lrptw"):
        events_of(command(CommandKind.SET_SCHEDULER, run="fit-1", scheduler="best"), story.state, by="ann")
    story.append(FINISHED)
    assert "fit-1 is finished" in refusal(story, CommandKind.SET_SCHEDULER, scheduler="fifo")


def test_an_unknown_priority_is_refused(story: Story) -> None:
    """For an open run; the fold records the priority and the user."""
    priorities = [story.run.priority]
    changed = PriorityChanged(run="fit-1", priority=HIGH, by="ann")
    assert event(story, CommandKind.PRIORITIZE, priority="high") == changed
    priorities.append(story.run.priority)
    assert story.state.commands[-1].what == "changed the priority of fit-1 to high"
    with pytest.raises(BadRequestError, match=r"no priority 'urgent': choose one of low, normal, high"):
        events_of(command(CommandKind.PRIORITIZE, run="fit-1", priority="urgent"), story.state, by="ann")
    story.append(FINISHED)
    assert "no run of experiment 'one' is open (fit-1 is finished)" in refusal(
        story, CommandKind.PRIORITIZE, priority="low"
    )
    story.append(PriorityChanged(run="fit-1", priority=LOW, by="ann"))
    assert story.state.commands[-1].is_late
    assert [*priorities, story.run.priority] == [NORMAL, HIGH, HIGH]


def test_an_experiment_is_archived_and_deleted_once_nothing_runs(story: Story) -> None:
    """By name; afterwards no other command is allowed."""
    assert event(story, CommandKind.ARCHIVE) == ExperimentArchived(is_archived=True, by="ann")
    assert "stop it first" in refusal(story, CommandKind.DELETE)
    story.append(FINISHED)
    assert "is archived" in refusal(story, CommandKind.ARCHIVE)
    assert event(story, CommandKind.UNARCHIVE) == ExperimentArchived(is_archived=False, by="ann")
    assert "repeat its exact name" in refusal(story, CommandKind.DELETE, confirm="other")
    assert event(story, CommandKind.DELETE, confirm=story.state.name) == DeletionRequested(by="ann")
    for kind in CommandKind:
        model = "m00" if kind.value.endswith("_model") else ""
        assert "is being deleted" in refusal(story, kind, model, scheduler="fifo", priority="low")


def test_the_notebook_has_a_method_for_each_command(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends the command with the user's name and returns."""
    monkeypatch.setattr("cerebro.client.session.author", lambda: "ann")
    sent: list[object] = []

    def append(name: str, command: object) -> int:
        sent.append(command)
        story.append(command)  # type: ignore[arg-type]
        return len(story.log)

    kvs = SimpleNamespace(
        events=lambda name, after: tuple(story.log[after:]),
        snapshot=lambda name, of_format: None,
        append=append,
    )
    connection: Any = SimpleNamespace(kvs=kvs)
    experiment = Experiment.__new__(Experiment)
    record = ExperimentRecord(name=story.state.name, locators=Locators(train=Locator(metadata="m.csv")))
    experiment._session = Session(connection, record)
    experiment.stop_model("m00")
    experiment.resume_model("m00")
    experiment.set_scheduler("fifo", planner=False)
    experiment.stop()
    story.append(STOPPED)
    experiment.resume("fit-1")
    story.fail(sub_epoch(1, 0), 0, FailureKind.USER_ERROR)
    experiment.retry_model("m00", run="fit-1")
    story.append(FINISHED)
    experiment.archive()
    experiment.unarchive()
    with pytest.raises(ConflictError, match="nothing was deleted"):
        experiment.delete(confirm="")
    experiment.delete(confirm=story.state.name)
    assert sent == [
        ModelStopRequested(run="fit-1", model="m00", by="ann"),
        ModelResumed(run="fit-1", model="m00", by="ann", can_reopen=True),
        SchedulerChanged(run="fit-1", scheduler="fifo", planner=False, by="ann"),
        RunStopRequested(run="fit-1", by="ann"),
        RunResumed(run="fit-1", by="ann", can_reopen=True),
        ModelRetried(run="fit-1", model="m00", by="ann", can_reopen=True),
        ExperimentArchived(is_archived=True, by="ann"),
        ExperimentArchived(is_archived=False, by="ann"),
        DeletionRequested(by="ann"),
    ]


def test_a_command_for_several_models_applies_to_all_or_none(story: Story) -> None:
    """One model that cannot be stopped blocks the command, on the page and the command line."""
    both = Command(kind=CommandKind.STOP_MODEL, run="fit-1", models=("m00", "m01"))
    assert events_of(both, story.state, by="ann") == (
        ModelStopRequested(run="fit-1", model="m00", by="ann"),
        ModelStopRequested(run="fit-1", model="m01", by="ann"),
    )
    event(story, CommandKind.STOP_MODEL, "m01")
    with pytest.raises(ConflictError, match="model m01 of fit-1 is stopped"):
        events_of(both, story.state, by="ann")


class _Mended:
    def begin(self, facts: object) -> list[object]:
        return []

    def on_report(self, report: object) -> list[object]:
        return []


def test_a_fixed_procedure_is_stored_if_it_can_replace_the_old_one(story: Story) -> None:
    """A run without a procedure leaves the store unchanged."""
    story.append(RunStopRequested(run="fit-1"), STOPPED)
    stored: list[object] = []
    kvs = SimpleNamespace(
        events=lambda name, after: tuple(story.log[after:]),
        snapshot=lambda name, of_format: None,
        put_code=stored.append,
    )
    connection: Any = SimpleNamespace(kvs=kvs)
    experiment = Experiment.__new__(Experiment)
    record = ExperimentRecord(name=story.state.name, locators=Locators(train=Locator(metadata="m.csv")))
    experiment._session = Session(connection, record)
    with pytest.raises(ConflictError, match="no search with your own procedure"):
        experiment.resume("fit-1", search=_Mended())  # type: ignore[arg-type]
    assert stored == []
