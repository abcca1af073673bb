"""Concurrent runs of one experiment: which run, which wait, and which may be reopened."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.contract.events import (
    ClientEvent,
    ModelResumed,
    ModelRetried,
    ModelStopRequested,
    RunFinished,
    RunRequested,
    RunResumed,
    RunStarted,
)
from cerebro.contract.runs import EtlRequest, EvaluatePlan, EvaluateRequest
from cerebro.state import ModelState, waiting_for
from cerebro.state.runs.concurrent_runs import finished_models, going_on, obstacle
from tests.state.stories import DATASET, SHA, Story

ETL = EtlRequest(code=SHA, code_fingerprint=SHA)


def evaluation(number: int, *models: str, fit: str = "fit-1") -> RunRequested:
    """Request a test of these models, or of the best one."""
    return RunRequested(
        run=f"test-{number}", request=EvaluateRequest(kind="test", fit=fit, models=models, split="test")
    )


def half_trained() -> Story:
    """The first of two models is finished; the other one trains."""
    story = Story()
    story.fit(partitions=1, epochs=1)
    story.train(1, 0)
    assert finished_models(story.run) == ["m00"]
    return story


def going(story: Story) -> list[str]:
    """Return the ids of runs that wait for no other run."""
    return [run.id for run in going_on(story.state.runs)]


def waits(story: Story, run: str) -> str:
    return waiting_for(story.state, story.state.runs[run])


def test_a_finished_model_is_tested_while_others_train() -> None:
    """Other models must wait until the run finishes, and the waiting reason says so."""
    story = half_trained()
    story.append(evaluation(1, "m00"), evaluation(2, "m00", "m01"), evaluation(3))
    assert going(story) == ["fit-1", "test-1"]
    assert waits(story, "test-1") == ""
    assert waits(story, "test-2") == "fit-1 is running, and its model m01 is not finished"
    assert waits(story, "test-3") == "fit-1 is running, and its best model is not known before it has ended"
    story.train(1, 0, model="m01")
    assert going(story) == ["fit-1", "test-1", "test-2", "test-3"]


def test_models_of_an_ended_run_are_tested_beside_any_other_run() -> None:
    """The other run may be ETL, a fit or another test. Each finishes independently."""
    story = half_trained()
    fit = RunRequested(run="fit-2", request=story.run.request)
    story.append(RunFinished(run="fit-1", outcome="stopped"), fit, evaluation(1, "m01"), evaluation(2))
    assert going(story) == ["fit-2", "test-1", "test-2"]
    assert story.state.active_run() is story.state.runs["fit-2"]
    story.append(RunFinished(run="fit-2", outcome="stopped"), RunRequested(run="etl-1", request=ETL))
    assert going(story) == ["test-1", "test-2", "etl-1"]
    assert story.state.active_run() is story.state.runs["etl-1"]


COMMANDS = [RunResumed(run="fit-1"), ModelResumed(run="fit-1", model="m01")]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.type)
def test_a_run_reopens_only_if_no_open_run_reads_its_unfinished_models(command: ClientEvent) -> None:
    """A tested model must not change until the test has finished."""
    story = half_trained()
    command = command.model_copy(update={"can_reopen": True})
    story.append(RunFinished(run="fit-1", outcome="stopped"), evaluation(1, "m00"), evaluation(2, "m01"))
    found = obstacle(story.state.runs, story.run)
    assert found is not None
    assert found.reason == "test-2 is queued and reads fit-1, whose model m01 is not finished"
    story.append(command)
    assert not story.run.is_open
    assert story.state.commands[-1].is_late
    story.append(RunFinished(run="test-2", outcome="finished"), command)
    assert going(story) == ["fit-1", "test-1"]


@given(random=st.randoms(use_true_random=False))
def test_no_run_reads_models_that_another_run_changes(random: Random) -> None:
    """At most one run changes data or models. A test of an open fit reads only finished models, and a started
    run continues."""
    story = Story()
    story.fit(models=3, partitions=1, epochs=1)
    before: set[str] = set()
    for number in range(2, 25):
        _happen(story, random, number)
        now, runs = going(story), story.state.runs
        assert {run for run in before if runs[run].is_open} <= set(now)
        assert sum(not runs[run].is_evaluation for run in now) <= 1
        for run in now:
            request = runs[run].request
            if isinstance(request, EvaluateRequest) and request.fit in now:
                fit = runs[request.fit]
                read = request.models or tuple(fit.models)
                assert all(fit.models[model].state is ModelState.FINISHED for model in read)
        before = set(now)


def _happen(story: Story, random: Random, number: int) -> None:
    runs = story.state.runs
    model = random.choice(["m00", "m01", "m02"])
    fit = RunRequested(run=f"fit-{number}", request=story.run.request)
    plan = EvaluatePlan(kind="test", dataset=DATASET, fit="fit-1", models={model: 1}, partitions={0: 1})
    commands: list[ClientEvent] = [
        RunResumed(run=random.choice([*runs]), can_reopen=True),
        ModelResumed(run="fit-1", model=model, can_reopen=True),
        ModelRetried(run="fit-1", model=model, can_reopen=True),
        ModelStopRequested(run="fit-1", model=model),
        evaluation(number, *random.choice([(), (model,)])),
        fit if random.random() < 0.3 else RunResumed(run="fit-1", can_reopen=True),
    ]
    action = random.choice(["ask", "ask", "end", "train", "plan"])
    open_ones = [run for run in going(story) if not runs[run].tasks.open]
    if action == "ask":
        story.append(random.choice(commands))
    elif action == "end" and open_ones:
        outcome = random.choice(["finished", "stopped", "failed"])
        story.append(RunFinished.model_validate({"run": random.choice(open_ones), "outcome": outcome}))
    elif action == "train" and "fit-1" in going(story) and story.model(model).state is ModelState.ACTIVE:
        story.train(1, 0, model=model)
    elif action == "plan":
        queued = [run for run in open_ones if runs[run].is_evaluation and runs[run].plan is None]
        named = [run for run in queued if getattr(runs[run].request, "models", ()) == (model,)]
        story.append(*(RunStarted(run=run, plan=plan) for run in named))
