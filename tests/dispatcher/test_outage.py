"""While the store is away the pages keep what they know, say since when, and do not pile up waiting."""

from __future__ import annotations

import pytest

from cerebro.errors import StoreUnavailableError
from dispatcher.reading import Reader
from tests.dispatcher.fakes import Bench, Clock, FakeStore
from tests.dispatcher.stories import NOW, Story, running_story


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.store.add(running_story())
    return bench


def test_last_good_data_stays_with_a_banner(bench: Bench) -> None:
    """Both live pages, dimmed, with the time of the outage's begin; and they come back by themselves."""
    browser = bench.signed_in()
    for path in ("/experiments", "/experiments/digits"):
        browser.get(path)
    bench.store.is_away = True
    bench.clock.now = NOW + 10
    for path in ("/experiments", "/experiments/digits"):
        bench.monotonic.now += 10
        page = browser.get(path)
        assert page.status_code == 200
        assert 'The store does not answer</strong> since <time datetime="2027-01-15T08:00:10Z"' in page.text
        assert 'class="stale"' in page.text
        assert "m04" in page.text or "running" in page.text
        bench.clock.now += 30
    bench.store.is_away = False
    bench.monotonic.now += 10
    assert "does not answer" not in browser.get("/experiments").text


def test_page_that_was_never_read_says_so(bench: Bench) -> None:
    """503 with what to do, not an empty list that looks like the truth."""
    browser = bench.signed_in()
    bench.store.is_away = True
    answer = browser.get("/experiments")
    assert answer.status_code == 503
    assert "No experiment yet" not in answer.text
    assert "Reload this page" in answer.text
    assert browser.client.get("/health").status_code == 200


def test_known_outage_is_not_waited_for_by_everybody() -> None:
    """One call in a while finds out; the others fail at once."""
    store, monotonic = FakeStore(is_away=True), Clock()
    reader = Reader(store, clock=Clock(), monotonic=monotonic)
    for _ in range(5):
        with pytest.raises(StoreUnavailableError):
            reader.record("digits")
    assert len(store.calls) == 1
    monotonic.now += 3
    with pytest.raises(StoreUnavailableError):
        reader.record("digits")
    assert len(store.calls) == 2


def test_wish_is_tried_although_the_store_was_away(bench: Bench) -> None:
    """Who sends a form just after an outage is not told of the outage."""
    browser = bench.signed_in()
    bench.store.is_away = True
    browser.get("/experiments")
    bench.store.is_away = False
    assert browser.post("/start", {"name": "new", "train_metadata": "/data/train.csv"}).status_code == 303


def test_long_log_is_read_in_pieces() -> None:
    """A request reads for a bounded time and says that more is to come."""
    store, monotonic = FakeStore(), Clock()
    story = Story("long")
    story.workers_join(2)
    story.etl()
    story.fit(models=400, epochs=1)
    for model in range(400):
        story.train(f"m{model:02}", 1)
    store.add(story)
    reader = Reader(store, clock=Clock(), monotonic=monotonic)
    seen = [
        reader.folded(story.record, lambda state, whole: (state.seq, whole), patience_s=0) for _ in range(4)
    ]
    assert seen == [(1000, False), (2000, False), (len(story.events), True), (len(story.events), True)]


def test_name_used_again_after_the_store_was_emptied() -> None:
    """The old log is not mixed with the new one."""
    store = FakeStore()
    store.add(running_story())
    reader = Reader(store, clock=Clock(), monotonic=Clock())
    reader.folded(reader.record("digits"), lambda state, whole: state.seq, patience_s=1)
    store.add(Story("digits", began=NOW))
    assert reader.folded(reader.record("digits"), lambda state, whole: state.seq, patience_s=1) == 0


def test_memory_for_logs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log looked at longest ago goes first."""
    monkeypatch.setattr("dispatcher.reading._MAX_EVENTS", 60)
    store = FakeStore()
    for name in ("a", "b", "c"):
        store.add(running_story(name))
    reader = Reader(store, clock=Clock(), monotonic=Clock())
    for name in ("a", "b", "c"):
        reader.folded(store.records[name], lambda state, whole: None, patience_s=1)
    store.calls.clear()
    sizes = [
        reader.folded(store.records[n], lambda state, whole: state.seq, patience_s=1) for n in ("c", "a")
    ]
    assert sizes[0] == sizes[1]
    assert len(reader._logs) == 2
