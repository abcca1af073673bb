"""The page that compares models of several experiments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dispatcher.compare import view
from dispatcher.models.comparison import MAX_MODELS
from dispatcher.pages.live_pages import RUNNING_S
from dispatcher.read_models.reader import FRESH_S, Reader
from tests.dispatcher.fakes import Bench, Browser
from tests.dispatcher.gallery import gallery
from tests.dispatcher.pages.seen import text_of
from tests.dispatcher.stories import Story, running_story


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    return gallery(tmp_path).signed_in()


def test_models_of_several_experiments_are_compared(browser: Browser) -> None:
    """The newest fit with the model is the default; the address names the run."""
    page = browser.get("/compare?pick=digits/m00,asha/fit-1/m08,done/m01")
    assert page.status_code == 200
    text = text_of(page.text)
    for label in ("digits/m00", "asha/m08", "done/m01"):
        assert label in text
    assert "learning_rate" in text
    assert "digits/fit-1/m00,asha/fit-1/m08,done/fit-1/m01" in page.text


def test_only_differing_hyperparameters_are_shown_unless_asked(browser: Browser) -> None:
    """Equal lines are counted."""
    some = browser.get("/compare?pick=digits/m00,digits/m02").text
    all_lines = browser.get("/compare?pick=digits/m00,digits/m02&all=1").text
    assert 'data-key="Hyperparameters-layers"' not in some
    assert "equal lines hidden" in some
    assert 'data-key="Hyperparameters-layers"' in all_lines


def test_the_best_model_is_marked_if_the_objectives_are_the_same(browser: Browser) -> None:
    """Values of different objectives are not comparable."""
    assert '<span class="tag">best</span>' in browser.get("/compare?pick=digits/m00,digits/m01").text
    assert '<span class="tag">best</span>' not in browser.get("/compare?pick=digits/m00,asha/m01").text


def test_a_model_that_does_not_exist_is_named_and_can_be_removed(browser: Browser) -> None:
    """The others are still compared; user input is escaped."""
    page = browser.get("/compare?pick=digits/m00,digits/nobody,gone-long-ago/m00,<b>/x").text
    text = text_of(page)
    assert "experiment 'digits' has no model 'nobody'" in text
    assert "gone-long-ago" in text
    assert "<b>" not in page
    assert 'href="/compare?pick=digits/fit-1/m00' in page.replace("%2F", "/")


def test_the_form_adds_a_model_also_without_scripts(browser: Browser) -> None:
    """Repeated parameters are joined, duplicates and more than the maximum are dropped."""
    text = text_of(browser.get("/compare?pick=digits/fit-1/m00&pick=digits/m00&pick=asha/m01").text)
    assert text.count("remove digits/m00") == 1
    assert "asha/m01" in text
    many = ",".join(f"digits/x{index}" for index in range(MAX_MODELS + 5))
    assert browser.get(f"/compare?pick={many}").text.count("is not shown") == MAX_MODELS


def test_curves_of_several_experiments_are_one_figure(browser: Browser) -> None:
    """Each line has the experiment and the model as its name, and its own colour."""
    answer = browser.get("/api/views/compare/curves?pick=asha/m00,asha/m01,digits/m00&axis=time&metric=loss")
    drawn = json.loads(answer.text)
    lines = {
        trace["name"]: trace["line"]["color"]
        for trace in drawn["data"]
        if trace.get("mode", "").startswith("lines")
    }
    assert {"asha/m00", "asha/m01"} <= set(lines)
    assert len(set(lines.values())) == len(lines)
    answer = browser.get("/api/views/compare/curves?pick=digits/m00,asha/m00")
    names = {trace.get("name") for trace in json.loads(answer.text)["data"]}
    assert "digits/m00" in names  # asha has no accuracy, the objective of the first model
    assert "asha/m00" not in names
    assert json.loads(browser.get("/api/views/compare/curves").text)["layout"]["meta"]["empty"]


@pytest.mark.parametrize("address", ["/fragments/compare", "/api/views/compare/curves"])
def test_a_poll_without_news_gets_304_and_any_compared_experiment_is_news(address: str) -> None:
    """A model that does not exist yet is news when it appears."""
    bench, stories = Bench(), [running_story("one"), running_story("two")]
    for story in stories:
        bench.store.add(story)
    browser, path = bench.signed_in(), f"{address}?pick=one/m00,two/m00,three/m00"

    def tag(known: str = "") -> tuple[int, str]:
        bench.clock.now += FRESH_S
        bench.monotonic.now += FRESH_S
        answer = browser.client.get(path, headers={"If-None-Match": known}, base_url="http://127.0.0.1:7080")
        return answer.status_code, answer.headers["ETag"]

    _, first = tag()
    assert tag(first) == (304, first)
    stories[1].pause("no room")
    status, second = tag(first)
    assert status == 200
    bench.store.add(running_story("three"))
    assert tag(second)[0] == 200


def test_models_of_one_experiment_need_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many models are selected, and in whatever order."""
    bench, read = Bench(), []
    for name in ("one", "two"):
        bench.store.add(running_story(name))
    reader_read = Reader.read

    def counting(self: Reader, name: str, *args: Any, **kwargs: Any) -> object:
        read.append(name)
        return reader_read(self, name, *args, **kwargs)

    browser = bench.signed_in()
    monkeypatch.setattr(Reader, "read", counting)
    text = text_of(browser.get("/compare?pick=one/m01,two/m00,one/m00,one/m02,two/m01").text)
    assert read == ["one", "two"]
    labels = [f"remove {name}" for name in ("one/m01", "two/m00", "one/m00", "one/m02", "two/m01")]
    assert sorted(labels, key=text.index) == labels


def test_a_model_in_the_unread_part_of_a_log_is_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page says that the log is still being read, and polls until it is."""
    monkeypatch.setattr(view, "_READ_S", 0.0)
    bench, story = Bench(), Story("long")
    story.workers_join()
    story.etl()
    story.fit(models=500, epochs=1)
    for model in range(500):
        story.train(f"m{model:02}", 1)
    story.finish()
    story.fit(models=501, epochs=1, run="fit-2")
    bench.store.add(story)
    browser = bench.signed_in()
    page = browser.get("/compare?pick=long/m500").text
    assert "the log of &#39;long&#39; is still being read" in page
    assert f'data-every="{RUNNING_S}"' in page
    bench.app.extensions["cerebro-background"].run()
    assert "is not shown" not in browser.get("/compare?pick=long/m500").text
