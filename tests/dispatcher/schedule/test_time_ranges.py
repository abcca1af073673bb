"""The schedule of a long run reads compacted sub-epochs from the log by time range."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cerebro.contract.stored.segments import Segment, SegmentsAnswer
from cerebro.errors import LostEventsError
from cerebro.state import log_pages
from cerebro.state.log_pages import Log
from cerebro.state.reports.timeline import task_attempts
from cerebro.state.snapshots import packed, snapshot_format
from dispatcher.schedule.window import TimeRange, window_view
from tests.dispatcher.fakes import Bench, Browser
from tests.dispatcher.stories import record
from tests.state.compacted_runs import compacted_history

PAGE = "/experiments/one/schedule"
VIEWS = "/api/views/experiments/one"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A dispatcher over a run with compacted sub-epochs and a snapshot."""
    monkeypatch.setattr(log_pages, "PAGE", 50)
    bench, history = Bench(), compacted_history(0)
    bench.store.records["one"] = record("one")
    bench.store.logs["one"] = history.log
    bench.store.snapshots["one", snapshot_format()] = packed(history.state)
    bench.clock.now = history.time
    return bench


@pytest.fixture
def browser(bench: Bench) -> Browser:
    return bench.signed_in()


def test_older_sub_epochs_are_read_from_the_log(browser: Browser) -> None:
    """Links lead from the newest time range to the first, and each attempt appears on the way."""
    history, observed, page = compacted_history(0), set[str](), PAGE
    for _ in range(200):
        text = browser.get(page).text
        observed |= set(re.findall(r'<tr data-key="(fit-1/[^"]+?)(?:-note)?"', text))
        pages = re.search(r"Page 1 of (\d+)", text)
        for number in range(2, int(pages[1]) + 1 if pages else 2):
            more = browser.get(f"{page}{'&' if '?' in page else '?'}page={number}").text
            observed |= set(re.findall(r'<tr data-key="(fit-1/[^"]+?)(?:-note)?"', more))
        older = re.search(r'href="([^"]+)">Older</a>', text)
        if older is None:
            break
        page = older[1].replace("&amp;", "&")
    else:
        raise AssertionError("there is always something older")
    whole = {
        str(sub_epoch.key("fit-1", m.id))
        for m in history.run.models.values()
        for sub_epoch in m.sub_epochs.recent
    }  # type: ignore[attr-defined, unused-ignore]
    committed = {event.task for event in history.log if event.type == "TaskCommitted"}
    assert whole < committed
    assert committed <= observed


def test_figure_and_table_of_a_time_range_agree(browser: Browser) -> None:
    """One bar per attempt, and no marker of the run's end."""
    since, until = 20, 60
    figure: Any = browser.get(f"{VIEWS}/figures/schedule?since={since}&until={until}").json
    sub_epochs: Any = browser.get(f"{VIEWS}/sub_epochs?kind=train&since={since}&until={until}&size=500").json
    bars = {
        (key, number) for trace in figure["data"] for _, _, _, number, key in trace.get("customdata") or ()
    }
    attempts = {
        (row["key"], each["number"])
        for row in sub_epochs["rows"]
        for each in row["attempts"]
        if each["started"]
    }
    assert bars == attempts != set()
    assert figure["layout"]["xaxis"]["range"][0] == since
    assert sub_epochs["window"]["since_s"] == since
    history = compacted_history(0)
    zero = history.run.clock.first_start
    expected = {
        (str(each.key), each.attempt.number)
        for each in task_attempts(history.run)
        if each.key.kind == "train" and each.attempt.has_run
        if each.attempt.started <= zero + until and each.attempt.ended >= zero + since
    }
    assert expected <= attempts


def test_unreadable_segments_are_reported(
    bench: Bench, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the page, with the newest sub-epochs, is shown."""
    log = compacted_history(0).log
    segment = Segment(
        first=1,
        last=200,
        began=log[0].time,
        ended=log[199].time,
        entries=200,
        size=0,
        sha256="0" * 64,
        file="-",
    )
    read = bench.store.events

    def events(experiment: str, after: int = 0) -> Any:
        if after < segment.last:
            raise LostEventsError.for_event(experiment, 1, "its file is gone")
        return read(experiment, after)

    monkeypatch.setattr(bench.store, "events", events)
    monkeypatch.setattr(bench.store, "segments", lambda name: SegmentsAnswer(segments=(segment,)))
    answer = browser.get(f"{PAGE}?since=0&until=20")
    assert answer.status_code == 200
    assert "cannot be read and is missing here: its file is gone" in answer.text
    figure: Any = browser.get(f"{VIEWS}/figures/schedule?since=0&until=20").json
    assert "its file is gone" in figure["layout"]["meta"]["empty"]
    assert 'data-key="fit-1/train' in browser.get(PAGE).text


def test_the_page_of_a_model_shows_its_sub_epochs_of_a_time_range(browser: Browser) -> None:
    """For the time range in the address."""
    history = compacted_history(0)
    model = next(iter(history.run.models.values()))
    text = browser.get(f"/experiments/one/models/{model.id}?since=0&until=40").text
    first = f"fit-1/train/{model.id}/e1/"
    assert f'data-key="{first}' in text
    assert "Newest" in text


def test_a_time_range_after_the_end_links_back() -> None:
    """A zero-length range becomes the narrowest allowed range."""
    nothing = {"since": 100.0, "until": 100.0, "end": 100.0, "zero": 0.0, "kept_since": 0.0}
    found = window_view(
        TimeRange(log=Log("one", 0.0, 10), run="fit-1", sub_epochs=10, is_chosen=True, **nothing)
    )
    since = found.older["since"]
    assert since is not None
    assert since < 100.0
