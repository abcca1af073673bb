"""Configurations of a cross-validation on the page, in the report and in `cerebro status`."""

from __future__ import annotations

import pytest

from cerebro.cli.experiments.status import state_lines
from cerebro.client.reporting import report_html
from cerebro.figures.search import observations
from dispatcher.models.query import ModelQuery
from dispatcher.models.view import models
from dispatcher.read_models.read_model import ReadModel
from tests.dispatcher.fakes import TOKEN, Bench
from tests.dispatcher.folded import folded_story
from tests.dispatcher.pages.seen import text_of


def test_the_page_ranks_configurations_by_the_mean_of_their_folds() -> None:
    """A lucky first fold does not decide; a model's page names its fold."""
    bench = Bench()
    bench.store.add(folded_story())
    answer = bench.app.test_client().get(
        "/api/views/experiments/folded/models", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    view = answer.get_json()
    assert [(row["id"], row["rank"]) for row in view["rows"]][:3] == [
        ("m01-f1", 1),
        ("m00-f1", 2),
        ("m02-f1", 3),
    ]
    assert view["best"]["model"] == "m01-f1"
    found = [(row["configuration"], row["rank"], round(row["mean"], 6)) for row in view["folds"]]
    assert found == [("m01", 1, 0.945), ("m00", 1, 0.91), ("m02", 1, 0.79)]
    assert "Cross-validation" in text_of(bench.signed_in().get("/experiments/folded/models").text)
    page = text_of(bench.signed_in().get("/experiments/folded/models/m01-f2").text)
    assert "Fold 2 of configuration m01: validates on partition 1, and trains on the others." in page


@pytest.mark.parametrize("last", range(7))
def test_the_page_and_the_fold_agree_about_the_order(last: int) -> None:
    """Also while models train, and when the page follows the log event by event."""
    story = folded_story(last=last)
    read_model = ReadModel(story.record)
    for event in story.events:
        read_model.apply([event])
        if read_model.fit():
            models(read_model, ModelQuery())
    run = story.state.runs["fit-1"]
    view = models(read_model, ModelQuery())
    assert view is not None
    best = [model.id for model in run.best_models(10)]
    assert [row.id for row in view.rows if row.rank is not None] == best
    assert (view.best.model if view.best else None) == next(iter(best), None)


def test_status_and_report_show_the_folds() -> None:
    """With mean, standard deviation and the first model of the best configuration."""
    story = folded_story()
    lines = "\n".join(state_lines(story.state))
    assert "FOLDS OF fit-1" in lines
    assert "0.945 ± 0.0071 (2 folds)" in lines
    assert "best model: m01-f1" in lines
    report = report_html(story.state, story.state.runs["fit-1"], record=story.record, now=story.time)
    assert "Best model: m01-f1" in report
    assert "Cross-validation" in report


def test_the_best_value_so_far_counts_one_model_of_each_configuration() -> None:
    """Else a lucky fold would look like progress of the search."""
    run = folded_story().state.runs["fit-1"]
    for axis in ("model", "time"):
        assert {each.model for each in observations(run, axis)} == {"m00-f1", "m01-f1", "m02-f1"}
