"""A model of a fit run in one row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.figures.models import ModelProgress, failure_groups, ranked, summaries, summary
from cerebro.state import Run
from cerebro.state.models import model
from cerebro.state.models.completed_sub_epoch import CompletedSubEpoch
from cerebro.state.models.sub_epochs import mean
from tests.figures.samples import row
from tests.state.stories import Story, sub_epoch, validation


def rows(run: Run) -> dict[str, tuple[object, ...]]:
    """Return the fields that change during a run."""
    return {
        row.id: (row.state, row.progress.epoch, row.progress.done, row.worker, row.effort.redone)
        for row in summaries(run)
    }


def test_models_come_in_the_order_of_the_plan() -> None:
    """Numbered from 0, with their hyperparameters; a run that is no fit has no rows."""
    story = Story()
    story.etl()
    story.fit(models=3, epochs=2)
    found = list(summaries(story.run))
    assert [(row.index, row.id, row.progress.total, row.progress.epochs) for row in found] == [
        (0, "m00", 4, 2),
        (1, "m01", 4, 2),
        (2, "m02", 4, 2),
    ]
    assert found[1].hyperparams == story.model("m01").hyperparams
    assert list(summaries(story.state.runs["etl-1"])) == []


@pytest.mark.parametrize("validated", [False, True])
def test_best_and_latest_differ(validated: bool) -> None:
    """The row has the metrics of the best epoch, and the newest epoch."""
    story = Story()
    story.fit(epochs=3, validated=validated)
    for epoch, loss in ((1, 3.0), (2, 1.0), (3, 2.0)):
        story.epoch(epoch, loss=9.0 if validated else loss, aux=float(epoch))
        if validated:
            story.validate(epoch, loss=loss, aux=float(epoch))
    row = summary(story.run, story.model(), 0)
    assert (row.best, row.best_epoch, row.latest, row.latest_epoch) == (1.0, 2, 2.0, 3)
    assert row.metrics == {"aux": 2.0, "loss": 1.0}
    assert row.state == "finished"


def test_a_validated_epoch_without_validation_has_no_values_yet() -> None:
    """Training metrics are not comparable."""
    story = Story()
    story.fit(validated=True)
    story.epoch(1, loss=2.0)
    row = summary(story.run, story.model(), 0)
    assert (row.latest, row.metrics, row.progress.done) == (None, {}, 2)
    story.start(validation(1), 0)
    assert summary(story.run, story.model(), 0).worker == ""


def test_a_row_has_the_running_sub_epoch_and_repeated_attempts() -> None:
    """While it runs and after it failed; other models are not affected."""
    story = Story()
    story.fit()
    story.train(1, 0)
    story.fail(sub_epoch(1, 1), 1, FailureKind.CRASH)
    story.start(sub_epoch(1, 1), 1)
    assert rows(story.run) == {"m00": ("running", 1, 1, "worker-1", 1), "m01": ("queued", 1, 0, "", 0)}
    story.break_off(sub_epoch(1, 1), 1, 2, FailureKind.USER_ERROR, "shape mismatch")
    assert rows(story.run)["m00"] == ("failed", 1, 1, "", 1)
    failure = summary(story.run, story.model(), 0).failure
    assert failure is not None
    assert failure.message == "shape mismatch"


def test_a_repeated_summary_computes_only_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages poll thousands of models every second, so the mean of an epoch is computed once."""
    story, calls = Story(), Counter[str]()

    def counted(sub_epochs: Sequence[CompletedSubEpoch]) -> dict[str, float]:
        calls["means"] += 1
        return mean(sub_epochs)

    monkeypatch.setattr(model, "mean", counted)
    story.fit(models=5, epochs=4)
    for name in story.run.models:
        for epoch in (1, 2, 3):
            story.epoch(epoch, model=name)
    first = list(summaries(story.run))
    assert calls.total() == 5 * 3
    assert list(summaries(story.run)) == first
    assert story.run.best_model() is story.model("m00")
    assert calls.total() == 5 * 3
    story.epoch(4, model="m01", loss=0.5)
    assert [row.best for row in summaries(story.run)] == [1.0, 0.5, 1.0, 1.0, 1.0]
    assert story.run.best_model() is story.model("m01")
    assert calls.total() == 5 * 3 + 1


def test_equal_values_rank_in_the_order_of_the_run() -> None:
    """As the best model of a run. Without a value, models with more sub-epochs come first."""
    early = ModelProgress(epoch=1, epochs=4, done=1, total=8)
    rows = [
        replace(row(0, None), progress=early),
        row(1, None),
        replace(row(2, 0.5), progress=early),
        row(3, 0.5),
        row(4, 0.1),
    ]
    assert [each.index for each in ranked(rows, "min")] == [4, 2, 3, 1, 0]
    assert [each.index for each in ranked(rows, "max")] == [2, 3, 4, 1, 0]


def test_failures_with_one_cause_are_one_group() -> None:
    """The first line of the message is the cause; the largest group is first."""
    failed = [row(index, None, is_failed=True) for index in range(3)]
    other = Failure(kind=FailureKind.USER_ERROR, message="bang\nat row 3")
    rows = [replace(failed[0], failure=other), *failed[1:], row(3, 0.5)]
    groups = [(failure.message, [each.id for each in models]) for failure, models in failure_groups(rows)]
    assert groups == [("boom", ["m01", "m02"]), ("bang\nat row 3", ["m00"])]
