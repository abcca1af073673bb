"""Errors are escaped, isolated and linked to a remedy."""

from __future__ import annotations

import pytest

from tests.dispatcher.fakes import Bench, Browser
from tests.dispatcher.pages.seen import text_of
from tests.dispatcher.stories import Story


def test_an_unreadable_log_affects_only_its_own_row(bench: Bench, browser: Browser) -> None:
    """The list still works; the experiment's page shows known facts and the next step."""
    good, bad = Story("good"), Story("bad")
    bad.workers_join()
    bad.etl()
    readable = len(bad.events)
    bad.events.append(bad.events[0])
    bench.store.add(good)
    bench.store.add(bad)
    listing = browser.get("/experiments")
    assert listing.status_code == 200
    assert "unreadable" in listing.text
    assert "good" in listing.text
    page = browser.get("/experiments/bad")
    assert page.status_code == 409
    text = text_of(page.text)
    assert "Install a version that can read it and restore it, or delete it" in text
    assert f"{readable} of {readable + 1} events are readable" in text
    assert "etl-1 finished" in text
    assert "/experiments/bad/delete" in page.text
    answer = browser.get("/api/views/experiments/bad")
    assert answer.status_code == 409
    assert answer.get_json()["error"] == "UnreadableError"
    assert "cannot be read" in answer.get_json()["message"]


def test_an_internal_error_is_shown_with_a_number(
    bench: Bench, browser: Browser, caplog: pytest.LogCaptureFixture
) -> None:
    """The cause is in the log under that number, not on the page."""
    bench.store.problem = RuntimeError("secret inside")
    answer = browser.get("/experiments")
    assert answer.status_code == 500
    assert "secret inside" not in answer.text
    assert answer.headers["X-Request-Id"] in answer.text
    assert "secret inside" in caplog.text
    assert answer.headers["X-Request-Id"] in caplog.text
