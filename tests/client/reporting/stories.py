"""Fit runs for reports, with hostile names, failures, and a stop with a resume."""

from __future__ import annotations

import math
from random import Random

from cerebro.contract.events import RunFinished, RunRequested, RunResumed, RunStarted, RunStopRequested
from cerebro.contract.records import ExperimentRecord, Hyperparameters, Locator, Locators
from cerebro.contract.runs import EvaluatePlan, EvaluateRequest
from cerebro.contract.tasks.failures import FailureKind
from cerebro.contract.tasks.results import TaskResult
from cerebro.state.reports.schedule_report import epoch_report
from cerebro.state.tasks.keys import TaskKey
from tests.state.stories import Story, joined, sub_epoch

NASTY = "<script>alert(1)</script>"

RECORD = ExperimentRecord(
    name="one",
    locators=Locators(
        train=Locator(metadata=f"s3://bucket/{NASTY}.csv", objects="s3://bucket/images"),
        valid=Locator(metadata="/data/valid.csv"),
    ),
    author="ada",
    created=1.7e9,
)


def reported() -> Story:
    """A fit of twenty models on three workers for two epochs, with validation; m07 fails in its second epoch."""
    random = Random(1)
    story = Story(workers=3)
    story.time = 1.8e9
    story.etl(workers=3, splits={"train": 400, "valid": 100})
    models: dict[str, Hyperparameters] = {
        f"m{i:02}": {
            "lr": 10 ** random.uniform(-4, -1),
            "width": random.choice([16, 32, 64]),
            "activation": random.choice(["relu", NASTY]),
            "batch_size": 32,
        }
        for i in range(20)
    }
    story.fit(partitions=3, epochs=2, hyperparams=models, validated=True)
    for epoch in (1, 2):
        for model, given in models.items():
            if (model, epoch) == ("m07", 2):
                story.fail(sub_epoch(2, 0, "m07"), 0, FailureKind.USER_ERROR, f"ValueError: {NASTY}")
                continue
            lr = given["lr"]
            assert isinstance(lr, float)
            loss = abs(math.log10(lr) + 2.5) + 1 / epoch
            story.epoch(epoch, model=model, partitions=3, loss=loss)
            story.validate(epoch, model=model, loss=loss + 0.1)
    return story


def evaluated() -> Story:
    """A fit of two models, tested on a split with partitions of 100 and 300 rows."""
    story = Story()
    story.fit(models=2, epochs=1)
    for model in story.run.models:
        story.epoch(1, model=model)
    plan = EvaluatePlan(
        kind="test", fit="fit-1", dataset="one-d", models={"m00": 1, "m01": 1}, partitions={0: 100, 1: 300}
    )
    story.append(
        RunRequested(run="test-1", request=EvaluateRequest(kind="test", fit="fit-1", split="test")),
        RunStarted(run="test-1", plan=plan),
    )
    for model, found in (("m00", (0.5, 0.9)), ("m01", (0.1, 0.1))):
        for partition, (rows, accuracy) in enumerate(zip((100, 300), found, strict=True)):
            key = TaskKey(run="test-1", kind="test", model=model, partition=partition)
            story.do(key, partition, TaskResult(rows=rows, metrics={"accuracy": accuracy}))
    return story


def resumed(break_s: float) -> Story:
    """A fit of two models for three epochs; a user stopped it after the first epoch and resumed it."""
    story = Story(workers=0)
    story.append(joined(0, partitions=(0, 1)), joined(1, partitions=(0, 1)))
    story.fit(models=2, epochs=3)
    for epoch in (1, 2):
        story.epoch(epoch, model="m00")
        story.epoch(epoch, model="m01")
        story.append(epoch_report(story.state, story.run, epoch))
        if epoch == 1:
            story.append(RunStopRequested(run="fit-1"), RunFinished(run="fit-1", outcome="stopped"))
            story.time += break_s
            story.append(RunResumed(run="fit-1"))
    return story
