"""The page Models shows repeats with mean, standard deviation and shared ranks."""

from __future__ import annotations

import pytest

from cerebro.cli.experiments.status import state_lines
from cerebro.client.reporting import report_html
from cerebro.figures.search import observations
from dispatcher.models.query import ModelQuery
from dispatcher.models.view import models
from dispatcher.read_models.read_model import ReadModel
from tests.dispatcher.fakes import TOKEN, Bench
from tests.dispatcher.pages.seen import text_of
from tests.dispatcher.repeated import repeated_story


def test_repeats_follow_the_models_with_their_means() -> None:
    """Repeated models come first by their means; the model with the best first seed is not the best."""
    bench = Bench()
    bench.store.add(repeated_story())
    answer = bench.app.test_client().get(
        "/api/views/experiments/repeated/models", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    view = answer.get_json()
    assert [(row["id"], row["rank"]) for row in view["rows"]][:4] == [
        ("m02", 1),
        ("m01", 2),
        ("m00", 3),
        ("m03", 4),
    ]
    assert all(row["rank"] is None for row in view["rows"][4:])
    assert view["best"]["model"] == "m02"
    found = [(row["model"], row["rank"], round(row["mean"], 6), row["seeds"]) for row in view["repeats"]]
    assert found == [("m02", 1, 0.94, 3), ("m01", 1, 0.903333, 3)]
    page = text_of(bench.signed_in().get("/experiments/repeated/models").text)
    assert "Repeats with new seeds" in page
    assert "m01, seed 2" in page
    assert "Repeat of m01 with seed 2" in text_of(
        bench.signed_in().get("/experiments/repeated/models/m05").text
    )


def test_a_page_of_a_run_without_repeats_has_no_section_on_them() -> None:
    """As in all logs of earlier versions."""
    story = repeated_story(last=4)
    bench = Bench()
    bench.store.add(story)
    page = bench.signed_in().get("/experiments/repeated/models").text
    assert "m01, seed 2" in text_of(page)  # waiting
    assert "3 seeds" not in text_of(page)


@pytest.mark.parametrize("last", range(4, 11))
def test_the_page_and_the_fold_agree_about_the_order(last: int) -> None:
    """Also while repeats train, and when the page follows the log event by event."""
    story = repeated_story(last=last)
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
    assert view.best is not None
    assert view.best.model == best[0]


def test_status_and_report_show_repeats() -> None:
    """The best model of both is the best by its mean."""
    story = repeated_story()
    lines = "\n".join(state_lines(story.state))
    assert "0.94 ± 0.01 (3 seeds)" in lines
    assert "best model: m02" in lines
    report = report_html(story.state, story.state.runs["fit-1"], record=story.record, now=story.time)
    assert "Best model: m02" in report
    assert "Repeats with new seeds" in report


def test_the_best_value_so_far_counts_no_repeats() -> None:
    """Else a lucky seed would look like progress of the search."""
    run = repeated_story().state.runs["fit-1"]
    for axis in ("model", "time"):
        assert {each.model for each in observations(run, axis)} == {"m00", "m01", "m02", "m03"}
