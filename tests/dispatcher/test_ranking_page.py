"""The page Ranking shows intervals, shared ranks, and the reason if there is no ranking."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import dispatcher.ranking.rankings as rankings_module
from cerebro.figures.ranking.results import RankedModel, RankingRequest
from cerebro.runtime.volumes import Volumes
from dispatcher.ranking.outcomes import Job
from dispatcher.ranking.process import compute
from dispatcher.ranking.rankings import Rankings
from dispatcher.ranking.view import interval_bars
from tests.clocks import set_monotonic
from tests.dispatcher.fakes import TOKEN, Bench, settings
from tests.dispatcher.pages.seen import text_of
from tests.dispatcher.ranked import add_ranked, three_models
from tests.dispatcher.stories import NOW, running_story
from tests.waiting import until

PAGE = "/experiments/ranked/ranking"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)})
    volumes.shared.mkdir()
    return Bench(settings=settings(volumes=volumes))


def view_of(bench: Bench, query: str = "") -> dict[str, Any]:
    """Return the answer of the read API, which is 503 while the ranking is computed."""
    client = bench.app.test_client()

    def answer() -> dict[str, Any] | None:
        found = client.get(f"/api/views{PAGE}{query}", headers=AUTHORIZED)
        assert found.status_code in (200, 503), found.text
        return found.get_json() if found.status_code == 200 else None

    return until(answer, "ranking")


@pytest.mark.processes
def test_tied_models_share_a_rank(bench: Bench) -> None:
    """The read API waits for the child process; the page then has the same ranking, and parameters change it."""
    add_ranked(bench, three_models())
    view = view_of(bench)
    found = [(each["rank"], each["model"], each["mean"]) for each in view["ranking"]["models"]]
    assert found == [(1, "m01", 0.825), (1, "m02", 0.82), (3, "m00", 0.5)]
    assert view["sentences"] == ["m01 and m02 are tied (95 %)"]
    page = text_of(bench.signed_in().get(PAGE).text)
    assert "m01 and m02 are tied (95 %)." in page
    assert "The 400 rows cannot separate models that share a rank." in page
    assert [each["better_than"] for each in view["ranking"]["models"]] == [1, 1, 0]
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
    view = view_of(bench)
    assert view["ranking"] is None
    assert "m00-1.arrow cannot be read" in view["reason"]


@pytest.mark.processes
def test_an_experiment_created_anew_has_its_own_ranking(bench: Bench) -> None:
    """Its files have the names of the deleted experiment's files."""
    values = three_models()
    add_ranked(bench, values)
    assert [each["model"] for each in view_of(bench)["ranking"]["models"]] == ["m01", "m02", "m00"]
    bench.clock.now += 3600
    bench.monotonic.now += 3600
    add_ranked(bench, {model: 1 - column for model, column in values.items()}, began=NOW)
    assert [each["model"] for each in view_of(bench)["ranking"]["models"]] == ["m00", "m02", "m01"]


def test_tests_of_other_fit_runs_are_not_shown(bench: Bench) -> None:
    """The overview links the page with its fit run."""
    add_ranked(bench, three_models())
    client = bench.app.test_client()
    answer = client.get(f"/api/views{PAGE}?fit=fit-2", headers=AUTHORIZED)
    assert answer.status_code == 404
    page = text_of(bench.signed_in().get(f"{PAGE}?fit=fit-2").text)
    assert "m01" not in page


@pytest.mark.processes
def test_a_failure_to_compute_is_not_kept(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without memory for a process: the ranking is computed again after a minute."""
    add_ranked(bench, three_models())
    names = ("m00", "m01", "m02")
    request = RankingRequest(
        files={name: (f"predictions/ranked/test-1/{name}-1.arrow",) for name in names}, mode="max"
    )
    rankings, now = Rankings(bench.settings.volumes), [0.0]
    set_monotonic(monkeypatch, lambda: now[0], rankings_module)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(tmp_path / "missing"))
        failed = until(lambda: rankings.find(request, 1.0, wait_s=1), "failure")
    assert failed.reason.startswith("it could not be computed: ")
    now[0] = 59.0
    version = rankings.version()
    assert rankings.find(request, 1.0) == failed
    now[0] = 60.0
    assert rankings.version() > version  # an open page asks again
    assert until(lambda: rankings.find(request, 1.0, wait_s=1), "ranking").ranking is not None


def test_an_open_page_asks_again_after_a_busy_moment(bench: Bench) -> None:
    """Nothing was computed, but the version differs."""
    rankings = Rankings(bench.settings.volumes)
    admitted = rankings._processes._slots._admitted
    while admitted.acquire(blocking=False):
        pass
    version = rankings.version()
    request = RankingRequest(files={"m00": ("m00.arrow",)}, mode="max")
    assert rankings.find(request, 1.0, wait_s=60) is None
    assert rankings.version() > version


@pytest.mark.parametrize("is_mounted", [True, False])
def test_a_missing_volume_is_a_temporary_failure(tmp_path: Path, is_mounted: bool) -> None:
    """A missing file is not: the models have to be tested again."""
    if is_mounted:
        (tmp_path / "shared").mkdir()
    request = RankingRequest(files={"m00": ("m00.arrow",)}, mode="max")
    outcome = compute(Job(request=request, shared=str(tmp_path / "shared"), cpu_s=1))
    assert outcome.is_temporary is not is_mounted
    assert ("Test the models again" in outcome.reason) is is_mounted


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
        RankedModel(rank=1, better_than=1, model="m00", mean=0.8, low=0.75, high=0.9),
        RankedModel(rank=2, better_than=0, model="m01", mean=0.5, low=0.4, high=0.6),
    )
    first, second = interval_bars(models)
    assert (first.start, first.width, first.mean) == pytest.approx((70, 30, 80))
    assert (second.start, second.width, second.mean) == pytest.approx((0, 40, 20))
    assert interval_bars(()) == ()
