"""A fit whose best models were trained again with new seeds, for tests of pages."""

from __future__ import annotations

from cerebro.contract.events import ModelsRepeated, RunRequested, RunStarted
from cerebro.contract.runs import FitPlan, FitRequest
from cerebro.contract.search import Repeat
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.results import TaskResult
from tests.dispatcher.stories import CODE, Story

ACCURACIES = {
    "m00": 0.93, "m01": 0.95, "m02": 0.94, "m03": 0.7,
    "m04": 0.88, "m05": 0.92, "m06": 0.91, "m07": 0.93, "m08": 0.94, "m09": 0.95,
}  # fmt: skip
"""m01 and m02 are repeated three times each: m04 to m06 and m07 to m09."""


def repeated_story(name: str = "repeated", *, last: int = 10) -> Story:
    """Four models and the repeats of the best two. The first `last` models have trained."""
    story = Story(name)
    story.workers_join()
    story.etl()
    rates = tuple({"lr": 0.1 / 2**number, "batch_size": 32} for number in range(4))
    request = FitRequest(
        code=CODE, models=rates, epochs=1, metric="accuracy", mode="max", repeats=Repeat(top=2, seeds=3)
    )
    story.append(RunRequested(run="fit-1", request=request, author="ada"))
    models = {f"m{number:02}": rate for number, rate in enumerate(rates)}
    story.append(
        RunStarted(run="fit-1", plan=FitPlan(dataset="d1", models=models, partitions={0: 898, 1: 898}))
    )
    for number, (model, accuracy) in enumerate(ACCURACIES.items()):
        if number == 4:
            story.append(ModelsRepeated(run="fit-1", models=("m01", "m02")))
        if number >= last:
            return story
        for partition in range(2):
            checkpoint = CheckpointRef(name=f"{model}/e1p{partition}", checksum="0" * 16, size=1)
            result = TaskResult(rows=898, metrics={"accuracy": accuracy}, checkpoint=checkpoint)
            story.run_task(f"fit-1/train/{model}/e1/p{partition}", f"worker-{partition}", result)
    story.finish()
    return story
