"""Results of fits with several objectives and constraints."""

from __future__ import annotations

import pandas as pd
import pytest

from cerebro.client.reporting import report_html
from cerebro.contract.runs import Mode
from cerebro.errors import NotFoundError
from cerebro.runtime.volumes import Volumes
from cerebro.state import ModelState
from cerebro.state.models.best import best_model, ranked_models
from cerebro.state.snapshots import packed, unpacked
from dispatcher.read_models.model_table import ModelTable
from tests.client.results.fits import fit_result
from tests.state.objective_stories import OBJECTIVES, story_of
from tests.state.stories import Story


def test_every_output_has_the_order_of_the_objectives(volumes: Volumes) -> None:
    """Feasible models first, then by front, then by the first objective; models without a value last."""
    story = story_of()
    result, table = fit_result(story, volumes), ModelTable(story.run)
    board = result.leaderboard()
    order = ["m02", "m01", "m00", "m03", "m04", "m05"]
    assert list(board["model"]) == order
    assert list(board["front"][:5]) == [1, 1, 2, 3, 4]
    assert list(board["feasible"][:5]) == [True, True, True, False, False]
    assert board[["accuracy", "model_bytes", "front", "feasible"]].iloc[5].isna().all()
    assert list(board["model_bytes"][:5]) == [50, 10, 10, 90, 95]
    assert [row.model.id for row in ranked_models(story.run)] == order
    assert [row.id for row in table.ranked()] == order
    assert [model.id for model in story.run.best_models(3)] == order[:3]
    best, found = table.best(), best_model(story.state)
    assert result.best.id == "m02"
    assert best is not None
    assert best.id == "m02"
    assert found is not None
    assert found.model.id == "m02"


def test_the_front_has_models_that_no_other_dominates(volumes: Volumes) -> None:
    """Models that violate a constraint follow."""
    front = fit_result(story_of(), volumes).pareto()
    assert list(front["model"]) == ["m02", "m01", "m03"]
    assert list(front["feasible"]) == [True, True, False]
    assert list(front.columns[:5]) == ["model", "feasible", "accuracy", "model_bytes", "best_epoch"]
    assert fit_result(story_of(constraints=()), volumes).pareto()["feasible"].all()


def test_a_fit_with_one_metric_has_its_best_models_as_front(volumes: Volumes) -> None:
    """Its leaderboard has no columns about fronts, and it has no Pareto plot."""
    result = fit_result(story_of({}, constraints=()), volumes)
    assert list(result.pareto()["model"]) == ["m03"]
    assert not {"front", "feasible"} & set(result.leaderboard().columns)
    with pytest.raises(NotFoundError, match="one objective and no constraint"):
        result.plot_pareto()


def test_an_empty_fit_has_the_columns(volumes: Volumes) -> None:
    """No model has trained."""
    story = Story()
    story.fit(metric="accuracy", mode="max", objectives=OBJECTIVES)
    result = fit_result(story, volumes)
    assert list(result.pareto().columns) == ["model", "feasible", "accuracy", "model_bytes", "best_epoch"]
    assert result.leaderboard()["front"].isna().all()
    assert result.plot_pareto().layout.meta["empty"]


def test_measures_are_of_the_best_epoch(volumes: Volumes) -> None:
    """Training seconds until then, its checkpoint's size, peak memory, and seconds per row of validation."""
    story = Story()
    names: dict[str, Mode] = dict.fromkeys(
        ("loss", "train_s", "model_bytes", "peak_bytes", "peak_gpu_bytes", "test_row_s"), "min"
    )
    story.fit(models=1, epochs=3, validated=True, objectives=names)
    for epoch, loss in ((1, 2.0), (2, 1.0), (3, 3.0)):
        for partition in range(2):
            story.train(epoch, partition, size=epoch, peak_bytes=7)
        story.validate(epoch, loss=loss)
    (row,) = fit_result(story, volumes).leaderboard().to_dict("records")
    found = tuple(row[name] for name in names)
    assert found[:4] == (1.0, 8.0, 2, 7)
    assert pd.isna(found[4])
    assert found[5] == 0.5
    assert unpacked(packed(story.state), type(story.state)).runs["fit-1"] == story.run


def test_a_model_without_an_objective_fails_with_its_name() -> None:
    """The message names metrics that exist and measures."""
    story = Story()
    story.fit(metric="accuracy", mode="max", objectives={"accuracy": "max", "recall": "max"})
    story.epoch(1, accuracy=0.5, loss=1.0)
    assert story.model().state is ModelState.FAILED
    failure = story.model().failures.final
    assert failure is not None
    assert (
        "'recall' was not returned by SubEpochSpec.train() of model m00, which returned: accuracy, loss"
        in failure.text
    )
    assert "train_s" in failure.text


def test_the_page_and_the_report_show_the_front(volumes: Volumes) -> None:
    """Ranks of the table are fronts; the report has a figure and a column for each objective."""
    story = story_of()
    html = report_html(story.state, story.run, record=None, now=story.time)
    assert "Pareto front" in html
    assert "2 of 5 models are on the Pareto front" in html
    figure = fit_result(story, volumes).plot_pareto()
    assert [trace.name for trace in figure.data[1:]] == ["dominated", "violates a constraint", "Pareto front"]
    assert list(figure.data[0].x) == [10, 50]
    assert set(figure.data[-1].x) == {10, 50}
    with pytest.raises(NotFoundError, match="does not compare loss: choose among accuracy, model_bytes"):
        fit_result(story, volumes).plot_pareto(x="loss")
