"""Metrics that are ratios: required metrics of tasks, and parts that cannot be combined."""

from __future__ import annotations

from typing import Any

import pytest

from cerebro import figures
from cerebro.contract.events import RunFinished, RunRequested, RunStarted
from cerebro.contract.rest import api
from cerebro.contract.runs import EvaluatePlan, EvaluateRequest
from cerebro.contract.search import Above, Below, FixedProcedure, Plateau, SearchRequest
from cerebro.contract.tasks.bodies import TrainTask
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.results import TaskResult
from controller.decisions import tasks
from tests.controller.test_fit_dispatch import RECORD, all_here, core_of
from tests.state.stories import DATASET, Story, sub_epoch


def result(metrics: dict[str, float], **ratios: Any) -> TaskResult:
    checkpoint = CheckpointRef(name="c", checksum="-", size=1)
    return TaskResult(rows=4, metrics=metrics, ratios=ratios, checkpoint=checkpoint)


def test_sub_epochs_receive_the_metric_names_of_their_epoch() -> None:
    """All earlier sub-epochs count, because the first one may have returned nothing."""
    story = Story(workers=3)
    story.fit(models=1, partitions=3, epochs=2)
    merges = []
    returned = iter([{}, {"f1": 0.5, "loss": 1.0}, {"f1": 0.5, "auc": 1.0}, {}])
    for epoch, partition in ((1, 0), (1, 1), (1, 2), (2, 0)):
        body = tasks.body(RECORD, story.state, story.run, sub_epoch(epoch, partition))
        assert isinstance(body, TrainTask)
        merges.append(body.merges)
        assert not body.needs  # the model has never returned its loss, so the run reports it
        metrics = next(returned)
        story.do(
            sub_epoch(epoch, partition), partition, result(metrics, **({"f1": (1, 2)} if metrics else {}))
        )
    assert merges == [{}, {}, {"f1": True, "loss": False}, {}]


@pytest.mark.parametrize("validated", [False, True])
def test_sub_epochs_must_return_the_metrics_that_the_run_reads(validated: bool) -> None:
    """Without a validation, sub-epochs must return the ranking metric and stop-rule metrics that the model
    returned before."""
    story = Story()
    run = story.fit(models=1, partitions=2, validated=validated)
    stop = (
        Above(metric="grad_norm", limit=9.0),
        Below(metric="misspelt", limit=0.0),
        Plateau(epochs=2),
    )
    search = SearchRequest(procedure=FixedProcedure(), stop=stop)
    run.request = run.fit_request.model_copy(update={"search": search})
    messages = []
    for partition in (0, 1):
        body = tasks.body(RECORD, story.state, run, sub_epoch(1, partition))
        assert isinstance(body, TrainTask)
        messages.append(body.model_dump(mode="json").get("needs"))
        story.do(sub_epoch(1, partition), partition, result({"loss": 1.0, "grad_norm": 2.0, "other": 3.0}))
    assert messages == [None, None if validated else ["grad_norm", "loss"]]


@pytest.mark.parametrize(
    ("second", "outcome"),
    [
        (result({"f1": 0.5}, f1=(1, 2)), "finished"),
        (result({"f1": 0.5}), "failed"),
        (result({}), "finished"),
    ],
)
def test_a_test_with_metrics_that_cannot_be_combined_fails(second: TaskResult, outcome: str) -> None:
    """The error names model, metric, partitions and a fix. A metric missing in a part is dropped."""
    story = Story()
    story.fit(models=1, partitions=2, epochs=1)
    story.epoch(1)
    sizes = {0: 4, 1: 4, 2: 4}
    plan = EvaluatePlan(kind="test", dataset=DATASET, fit="fit-1", models={"m00": 1}, partitions=sizes)
    story.append(
        RunRequested(run="test-1", request=EvaluateRequest(kind="test", fit="fit-1", split="train")),
        RunStarted(run="test-1", plan=plan),
    )
    first = result({"f1": 0.2, "loss": 1.0}, f1=(1, 5))
    for partition, each in enumerate((first, second, first) if outcome == "finished" else (first, second)):
        story.do(story.state.runs["test-1"].find(f"test-1/test/m00/p{partition}").key, partition % 2, each)
    core = core_of(story)
    (step,) = core.decide(all_here(story), core.state.runs["test-1"])
    assert isinstance(step, api.Note)
    assert isinstance(step.event, RunFinished)
    assert step.event.outcome == outcome
    if outcome == "failed":
        text = "metric 'f1' of model m00 is a cerebro.Ratio on partition 0 and a number on partition 1, which cannot be"
        assert step.event.error.startswith(text)
        assert "always as cerebro.Ratio(numerator, denominator)" in step.event.error
    else:
        (found,) = figures.tested(core.state.runs["test-1"])
        assert "loss" not in {*found.metrics, *found.means}
