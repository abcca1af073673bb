"""User commands, and stories to apply them to."""

from __future__ import annotations

from cerebro.contract.events import (
    ModelResumed,
    ModelRetried,
    ModelStopRequested,
    RunFinished,
)
from cerebro.contract.tasks.failures import FailureKind
from tests.state.stories import Story, sub_epoch


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
    """Return the state without the event count and the list of actions."""
    return repr((story.state.runs, story.state.workers, story.state.is_archived, story.state.deletion))


def failed() -> Story:
    """m00 has failed in its second sub-epoch; m01 has not started."""
    story = Story()
    story.fit(max_attempts=2)
    story.train(1, 0)
    story.fail(sub_epoch(1, 1), 1, FailureKind.CRASH)
    story.fail(sub_epoch(1, 1), 1, FailureKind.USER_ERROR)
    return story
