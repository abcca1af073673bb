"""A cross-validation for tests of pages."""

from __future__ import annotations

from cerebro.contract.events import RunRequested, RunStarted
from cerebro.contract.runs import FitPlan, FitRequest
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.results import TaskResult
from cerebro.state.runs.folds import divided, models_of
from tests.dispatcher.stories import CODE, Story

ACCURACIES = {
    "m00-f1": 0.90, "m00-f2": 0.92,
    "m01-f1": 0.95, "m01-f2": 0.94,
    "m02-f1": 0.97, "m02-f2": 0.61,
}  # fmt: skip
"""m02 has the best value of the first fold, and m01 the best mean."""


def folded_story(name: str = "folded", *, last: int = 6) -> Story:
    """Three configurations with two folds; the first `last` models have trained."""
    story = Story(name)
    story.workers_join()
    story.etl()
    rates = tuple({"lr": 0.1 / 2**number, "batch_size": 32} for number in range(3))
    request = FitRequest(code=CODE, models=rates, epochs=1, metric="accuracy", mode="max", folds=2)
    story.append(RunRequested(run="fit-1", request=request, author="ada"))
    partitions = {0: 898, 1: 898}
    folds = divided(partitions, 2)
    models = models_of({f"m{number:02}": rate for number, rate in enumerate(rates)}, 2)
    plan = FitPlan(dataset="d1", models=models, partitions=partitions, folds=folds)
    story.append(RunStarted(run="fit-1", plan=plan))
    for model, accuracy in [*ACCURACIES.items()][:last]:
        held_out = int(model[-1]) - 1
        trained = 1 - held_out
        checkpoint = CheckpointRef(name=f"{model}/e1p{trained}", checksum="0" * 16, size=1)
        result = TaskResult(rows=898, metrics={"accuracy": 0.99}, checkpoint=checkpoint)
        story.run_task(f"fit-1/train/{model}/e1/p{trained}", f"worker-{trained}", result)
        validated = TaskResult(rows=898, metrics={"accuracy": accuracy})
        story.run_task(f"fit-1/valid/{model}/e1/p{held_out}", f"worker-{held_out}", validated)
    if last == len(ACCURACIES):
        story.finish()
    return story
