"""Results of fits, built from event logs."""

from __future__ import annotations

from typing import Literal

from cerebro.client.files import MountedFiles
from cerebro.client.results import FitResult
from cerebro.contract.tasks.failures import FailureKind
from cerebro.runtime.volumes import Volumes
from tests.state.stories import Story, sub_epoch


def fit_result(story: Story, volumes: Volumes) -> FitResult:
    return FitResult(story.state, story.run, MountedFiles(volumes))


def fitted(*, mode: Literal["min", "max"] = "min", validated: bool = False) -> Story:
    """A fit of three models: one good, one bad, one that failed in its second epoch."""
    story = Story()
    story.etl()
    story.fit(models=4, mode=mode, validated=validated)
    for model, losses in (("m00", (5.0, 4.0)), ("m01", (1.0, 2.0))):
        for epoch, loss in enumerate(losses, start=1):
            story.epoch(epoch, model=model, loss=loss)
            if validated:
                story.validate(epoch, model=model, loss=loss * 10)
    story.epoch(1, model="m02", loss=3.0)
    if validated:
        story.validate(1, model="m02", loss=30.0)
    story.fail(sub_epoch(2, 0, "m02"), 0, FailureKind.USER_ERROR, "ValueError: boom")
    return story
