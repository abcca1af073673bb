"""Pages show instants instead of ages, and fragments are sent only when they change."""

from __future__ import annotations

import re

from dispatcher.pages import formats
from tests.dispatcher.fakes import Bench, Browser
from tests.dispatcher.stories import Story, running_story, status


def test_ongoing_durations_are_sent_as_instants(bench: Bench, browser: Browser) -> None:
    """An unchanged page is not sent again, so an age would be wrong."""
    story = running_story()
    bench.store.add(story)
    bench.store.statuses = [status("worker-0"), status("worker-1", silent_s=40.0)]
    bench.clock.now = story.time
    page = browser.get("/experiments/digits").text
    reported = formats.iso(story.time - 40.0)
    assert f'It last reported <time datetime="{reported}" data-show="ago"' in page
    assert len(re.findall(r'<time datetime="[\dT:-]+Z" data-show="left">', page)) == 2


def test_the_page_of_an_open_run_is_rebuilt_without_new_events(bench: Bench, browser: Browser) -> None:
    """Throughput falls and the estimated end moves while no sub-epoch ends."""
    bench.store.add(running_story())
    path, host = "/fragments/experiments/digits", {"base_url": "http://127.0.0.1:7080"}
    first = browser.get(path)
    bench.clock.now += 60
    bench.monotonic.now += 60
    later = browser.client.get(path, headers={"If-None-Match": first.headers["ETag"]}, **host)
    assert later.status_code == 200
    rate = re.compile(r"Throughput</dt><dd class=\"large\">([\d.,]+) rows/s")
    old, new = (float(rate.findall(page.text)[0].replace(",", "")) for page in (first, later))
    assert new < old


def test_a_fragment_sets_the_polling_interval(bench: Bench, browser: Browser) -> None:
    """Soon during a run, otherwise later. The answer has the tab's title and icon, but no form token."""
    story = Story("digits")
    story.workers_join()
    story.etl()
    bench.store.add(story)
    bench.store.add(running_story("busy"))
    rests = browser.get("/fragments/experiments/digits").text
    busy = browser.get("/fragments/experiments/busy").text
    assert 'data-every="10.0"' in rests
    assert 'data-icon="finished"' in rests
    assert 'data-every="1.5"' in busy
    assert 'data-title="23 % running' in busy
    assert "<html" not in busy
    assert re.findall(r'name="csrf" value="([^"]*)"', busy) == [""] * busy.count('name="csrf"')
