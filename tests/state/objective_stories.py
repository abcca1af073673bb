"""A fit with two objectives and a constraint."""

from __future__ import annotations

from cerebro.contract.runs import Constraint, Mode
from tests.state.stories import Story

OBJECTIVES: dict[str, Mode] = {"accuracy": "max", "model_bytes": "min"}
SMALL = Constraint(name="model_bytes", operator="<=", limit=60)
MODELS = {"m00": (0.5, 10), "m01": (0.7, 10), "m02": (0.9, 50), "m03": (0.99, 90), "m04": (0.98, 95)}
"""Accuracy and checkpoint size: m01 dominates m00, m03 dominates m04; the last two are too large."""


def story_of(
    objectives: dict[str, Mode] | None = None, *, constraints: tuple[Constraint, ...] = (SMALL,)
) -> Story:
    """A fit of five models, whose last one is not trained."""
    story = Story()
    story.fit(
        models=6,
        epochs=1,
        metric="accuracy",
        mode="max",
        objectives=OBJECTIVES if objectives is None else objectives,
        constraints=constraints,
    )
    for model, (accuracy, size) in MODELS.items():
        for partition in range(2):
            story.train(1, partition, model=model, size=size, peak_bytes=3, accuracy=accuracy)
    return story
