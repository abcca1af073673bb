"""Tags and notes on the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro.contract.events import TagsChanged
from tests.dispatcher.fakes import Bench, Browser
from tests.dispatcher.gallery import gallery
from tests.dispatcher.pages.seen import text_of


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return gallery(tmp_path)


@pytest.fixture
def browser(bench: Bench) -> Browser:
    return bench.signed_in()


def change(browser: Browser, **fields: str) -> int:
    return browser.post("/experiments/digits/tags", fields, form="/experiments/digits").status_code


def test_tags_are_set_searched_and_deleted(bench: Bench, browser: Browser) -> None:
    """The list finds tags and notes; the history names the author."""
    assert change(browser, key="stage", value="baseline <b>") == 303
    assert change(browser, key="note", value="looks good\nso far <script>") == 303
    page = browser.get("/experiments/digits").text
    assert "stage: baseline &lt;b&gt;" in page
    assert "so far &lt;script&gt;" in page
    browser.get("/experiments")  # reads the logs; the search knows tags of read logs
    for wanted, is_found in (("stage=base", True), ("so far", True), ("stage=x", False)):
        assert ('href="/experiments/digits"' in browser.get(f"/experiments?q={wanted}").text) is is_found
    assert "set tags: stage=baseline" in text_of(browser.get("/experiments/digits/history").text)
    assert change(browser, key="stage", delete="1") == 303
    assert change(browser, key="note", value="") == 303
    event = bench.store.logs["digits"][-1]
    assert isinstance(event, TagsChanged)
    assert event.tags == {"note": None}
    assert "stage: baseline" not in browser.get("/experiments/digits").text


def test_models_have_tags_that_the_filter_finds(browser: Browser) -> None:
    """The column tags includes the note."""
    assert change(browser, key="stage", value="final", run="fit-1", model="m03") == 303
    assert change(browser, key="note", value="plateau", run="fit-1", model="m03") == 303
    assert "stage: final" in browser.get("/experiments/digits/models/m03").text
    for wanted in ("tags ~ stage", "tags ~ plat"):
        found = browser.get(f"/experiments/digits/models?filter={wanted.replace(' ', '+')}").text
        assert 'data-model="m03"' in found
        assert 'data-model="m02"' not in found


def test_an_invalid_tag_is_refused_with_a_reason(bench: Bench, browser: Browser) -> None:
    """Nothing is appended."""
    events = len(bench.store.logs["digits"])
    assert change(browser, key="<b>", value="x") == 400
    assert change(browser, key="a", value="x", run="fit-1", model="nobody") == 404
    assert len(bench.store.logs["digits"]) == events
