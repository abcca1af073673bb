"""Run states: transitions, finish conditions and queue order."""

from __future__ import annotations

import pytest

from cerebro.contract.events import (
    Event,
    RunFinished,
    RunPaused,
    RunRequested,
    RunResumed,
    RunStarted,
    RunStopRequested,
)
from cerebro.errors import IllegalEventError
from cerebro.state import RunState
from cerebro.state.runs.run import ENDED_RUN, OPEN_RUN, TRANSITIONS
from tests.state.stories import Story, sub_epoch


def run_in(state: RunState) -> Story:
    story = Story()
    story.fit()
    if state is RunState.QUEUED:
        request = story.run.request
        story = Story()
        story.append(RunRequested(run="fit-1", request=request))
    elif state is RunState.PAUSED:
        story.append(RunPaused(run="fit-1", reason="full", needs_bytes=5))
    elif state is RunState.STOPPING:
        story.append(RunStopRequested(run="fit-1"))
    elif state in ENDED_RUN:
        story.append(RunFinished.model_validate({"run": "fit-1", "outcome": str(state), "error": "why"}))
    assert story.run.state is state
    return story


@pytest.mark.parametrize("state", list(RunState))
@pytest.mark.parametrize("kind", ["RunStarted", "RunPaused", "RunResumed", "RunStopRequested", "RunFinished"])
def test_runs_change_state_only_by_the_table(state: RunState, kind: str) -> None:
    """Each pair of state and event leads to the table's target, no effect if late, or a refusal."""
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
            story.append(event)
    else:
        story.append(event)
    assert story.run.state in (targets or {state})


def test_a_run_with_open_tasks_does_not_end() -> None:
    """The controller revokes its attempts first."""
    story = Story()
    story.fit()
    story.start(sub_epoch(1, 0), 0)
    with pytest.raises(IllegalEventError, match="tasks are open"):
        story.append(RunFinished(run="fit-1", outcome="stopped"))


def test_the_oldest_open_run_is_active() -> None:
    """A later request waits."""
    story = Story()
    story.fit()
    story.append(RunRequested(run="fit-2", request=story.run.request))
    assert story.state.active_run() is story.run
    story.append(RunFinished(run="fit-1", outcome="finished"))
    assert story.state.active_run() is story.state.runs["fit-2"]
