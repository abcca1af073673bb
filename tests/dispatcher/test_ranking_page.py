"""The page Ranking shows intervals, shared ranks, and the reason if there is no ranking."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro.figures.ranking.results import RankedModel
from cerebro.runtime.volumes import Volumes
from dispatcher.ranking.view import interval_bars
from tests.dispatcher.fakes import TOKEN, Bench, settings
from tests.dispatcher.pages.seen import text_of
from tests.dispatcher.ranked import add_ranked, three_models
from tests.dispatcher.stories import running_story

PAGE = "/experiments/ranked/ranking"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)})
    volumes.shared.mkdir()
    return Bench(settings=settings(volumes=volumes))


@pytest.mark.processes
def test_tied_models_share_a_rank(bench: Bench) -> None:
    """The read API waits for the child process; the page then has the same ranking, and parameters change it."""
    add_ranked(bench, three_models())
    answer = bench.app.test_client().get(f"/api/views{PAGE}", headers=AUTHORIZED)
    assert answer.status_code == 200, answer.text
    view = answer.get_json()
    found = [(each["rank"], each["model"], each["mean"]) for each in view["ranking"]["models"]]
    assert found == [(1, "m01", 0.825), (1, "m02", 0.82), (3, "m00", 0.5)]
    assert view["sentences"] == ["m01 and m02 are tied (95 %)"]
    page = text_of(bench.signed_in().get(PAGE).text)
    assert "m01 and m02 are tied (95 %)." in page
    assert "Models share a rank if 400 rows cannot separate them" in page
    first = bench.signed_in().get(f"{PAGE}?size=1").text
    assert "The best 1 of 3" in text_of(first)
    assert "m02</a>" not in first


@pytest.mark.processes
def test_a_link_out_of_the_volume_is_not_read(bench: Bench) -> None:
    """User code can write to the volume."""
    add_ranked(bench, three_models())
    path = bench.settings.volumes.shared / "predictions/ranked/test-1/m00-1.arrow"
    path.unlink()
    path.symlink_to("/etc/hostname")
    answer = bench.app.test_client().get(f"/api/views{PAGE}", headers=AUTHORIZED)
    assert answer.get_json()["ranking"] is None
    assert "m00-1.arrow cannot be read" in answer.get_json()["reason"]


def test_without_values_per_row_the_page_says_what_to_do(bench: Bench) -> None:
    """As before the first test."""
    bench.store.add(running_story())
    browser = bench.signed_in()
    assert "No ranking: the experiment has no planned test run yet" in text_of(
        browser.get("/experiments/digits/ranking").text
    )


def test_intervals_have_a_common_scale() -> None:
    """From the lowest bound at 0 to the highest one at 100."""
    models = (
        RankedModel(rank=1, model="m00", mean=0.8, low=0.75, high=0.9),
        RankedModel(rank=2, model="m01", mean=0.5, low=0.4, high=0.6),
    )
    first, second = interval_bars(models)
    assert (first.start, first.width, first.mean) == pytest.approx((70, 30, 80))
    assert (second.start, second.width, second.mean) == pytest.approx((0, 40, 20))
    assert interval_bars(()) == ()
