"""The search tab, and the search information on other tabs."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from cerebro.contract.events import Event, SearchStopRequested
from cerebro.state import ExperimentState
from cerebro.state.experiment import fold
from cerebro.state.runs import rungs
from dispatcher.read_models.read_model import ReadModel
from tests.dispatcher.fakes import Bench, Browser
from tests.dispatcher.pages.seen import text_of
from tests.dispatcher.search_logs import SEARCHES, earlier_log, log_of
from tests.dispatcher.stories import record


def shown(name: str, events: Sequence[Event] | None = None) -> tuple[Bench, Browser]:
    bench = Bench()
    bench.store.records[name] = record(name)
    bench.store.logs[name] = list(log_of(name) if events is None else events)
    return bench, bench.signed_in()


def half_of(name: str) -> list[Event]:
    """Up to the first model that waits at a rung, or the first trained clone."""
    state, found = ExperimentState(name="digits"), []
    for event in log_of(name):
        state.apply(event)
        found.append(event)
        run = state.runs.get("fit-1")
        words = [each.state for each in run.models.values()] if run else []
        if run and run.search and run.search.num_suggested > 6 and "finished" in words and "active" in words:
            break
    return found


def test_the_tab_lists_promoted_and_stopped_models_with_reasons() -> None:
    """With the reason, from the highest to the lowest rung."""
    _, browser = shown("asha")
    page = text_of(browser.get("/experiments/asha/search").text)
    run = fold("asha", log_of("asha")).runs["fit-1"]
    assert run.search is not None
    for why in run.search.verdicts.values():
        assert why in page
    assert "ASHA (stopping), models sampled at random" in page
    assert "12 of at most 12 suggested, 12 models" in page
    assert page.index("Rung of 4 epochs") < page.index("Rung of 3 epochs") < page.index("Rung of 1 epoch")
    assert "promoted to epoch 3" in page


def test_the_tab_says_how_many_earlier_models_the_sampler_learns_from() -> None:
    """And why it does not learn from the others."""
    page = text_of(shown("earlier", list(earlier_log()))[1].get("/experiments/earlier/search").text)
    assert "Learns from 7 models of one/fit-1, not from 3: 2 without a value; 1 with lr outside" in page


def test_an_open_search_shows_no_percentage() -> None:
    """The page shows models and epochs; models at a rung are shown as paused."""
    _, browser = shown("waiting", half_of("waiting"))
    page = text_of(browser.get("/experiments/waiting").text)
    assert (
        "by fit-1 , whose search is still adding models" in page
        or "by fit-1, whose search is still adding models" in page
    )
    assert "%" not in page.partition("Cerebro")[0]
    assert re.search(r"[0-9]+ models, [0-9]+ epochs? trained", page)
    assert "waits for a decision" in text_of(browser.get("/experiments/waiting/search").text)


@pytest.mark.parametrize("name", SEARCHES)
def test_every_page_works_at_every_stage_of_a_search(name: str) -> None:
    """Also before the first model exists."""
    events = log_of(name)
    began = next(index for index, event in enumerate(events) if event.type == "RunStarted")
    for stop in (began + 1, len(half_of(name)), len(events)):
        _, browser = shown(name, events[:stop])
        for tab in (
            "",
            "/models",
            "/search",
            "/curves",
            "/schedule",
            "/checkpoints",
            "/logs",
            "/history",
            "/code",
        ):
            answer = browser.get(f"/experiments/{name}{tab}")
            assert answer.status_code == 200, (name, stop, tab)
        for tab in ("/experiments", "/cluster"):
            assert browser.get(tab).status_code == 200


def test_models_show_their_parents_and_curves_start_there() -> None:
    """In the table, on the model's page and in the curves."""
    _, browser = shown("pbt")
    run = fold("pbt", log_of("pbt")).runs["fit-1"]
    clone = next(model for model in run.models.values() if model.lineage.sub_epochs)
    table = text_of(browser.get("/experiments/pbt/models").text)
    assert f"{clone.lineage.parent} at epoch {clone.inherited_epochs}" in table
    page = browser.get(f"/experiments/pbt/models/{clone.id}").text
    assert f"Continues {clone.lineage.parent} from epoch {clone.inherited_epochs}" in text_of(page).replace(
        " .", "."
    )
    assert re.search(rf"models={clone.lineage.parent}(%2C|,){clone.id}", page)
    assert (
        browser.get(page.partition('data-figure="')[2].partition('"')[0].replace("&amp;", "&")).status_code
        == 200
    )


@pytest.mark.parametrize("name", SEARCHES)
def test_cached_rows_equal_recomputed_rows(name: str) -> None:
    """Cached rows equal recomputed rows after every event of a search."""
    kept = ReadModel(record(name))
    for number, event in enumerate(log_of(name)):
        kept.apply([event])
        run = kept.fit()
        if run is None:
            continue
        table = kept.table(run)
        assert table.progress() == (run.progress() if run.has_known_end else (run.progress()[0], 0))
        assert kept.rungs(run) == rungs.rungs(run)
        assert table.trained_epochs() == sum(model.own_epochs for model in run.models.values())
        if number % 7 == 0:
            anew = ReadModel(record(name))
            anew.apply(log_of(name)[: number + 1])
            assert table.rows() == anew.table(anew.state.runs[run.id]).rows()
            assert table.varying == anew.table(anew.state.runs[run.id]).varying


def test_a_search_can_be_controlled_from_its_tab() -> None:
    """The tab offers add, clone and stop while the search runs, and names the author."""
    bench, browser = shown("waiting", half_of("waiting"))
    page = browser.get("/experiments/waiting/search").text
    assert "/experiments/waiting/add?fit=fit-1" in page
    assert "/experiments/waiting/clone?fit=fit-1&amp;model=m01" in page
    fields = {"action": "stop_search", "run": "fit-1"}
    assert browser.post("/experiments/waiting/actions", fields, form="/start").status_code == 303
    assert isinstance(bench.store.logs["waiting"][-1], SearchStopRequested)
    page = browser.get("/experiments/waiting/search").text
    assert "a user ended the search" in page
    assert "stop_search" not in page
