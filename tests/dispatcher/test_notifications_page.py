"""The page of notification targets, without users."""

from __future__ import annotations

import pytest

from cerebro.contract.stored.notifications import TargetStatus
from tests.dispatcher.fakes import Bench, Browser
from tests.dispatcher.pages.seen import text_of
from tests.dispatcher.stories import NOW, Story

PAGE = "/notifications"
SLACK = {"url": "slack://T0secret0/B0/C0", "runs": "*", "event": ["finished", "failed"]}


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.store.add(Story("digits", project="vision"))
    return bench


@pytest.fixture
def browser(bench: Bench) -> Browser:
    return bench.signed_in()


def test_a_target_is_added_tested_and_removed(bench: Bench, browser: Browser) -> None:
    """The page shows the result of a test message when the controller has sent it, and no secret."""
    assert "No notification target" in browser.get(PAGE).text
    assert browser.post(PAGE, SLACK).status_code == 303
    text = browser.get(PAGE).text
    assert "slack://... target-1 all runs finished, failed 0" in text_of(text)
    assert "secret" not in text
    assert browser.post(f"{PAGE}/target-1/test", {}, form=PAGE).status_code == 303
    assert "Sending…" in browser.get(PAGE).text
    bench.store.results["target-1"] = TargetStatus(tested=NOW, failed=1, error="the service refused it")
    text = text_of(browser.get(PAGE).text)
    assert "the service refused it" in text
    assert "Sending" not in text
    bench.store.results["target-1"] = TargetStatus(tested=NOW, sent=1, last=NOW)
    assert "Test message sent" in text_of(browser.get(PAGE).text)
    assert browser.post(f"{PAGE}/target-1/remove", {}, form=PAGE).status_code == 303
    assert "No notification target" in browser.get(PAGE).text
    assert browser.post(f"{PAGE}/target-1/remove", {}, form=PAGE).status_code == 404


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"url": "T0secret0"}, "expected an address such as slack://"),
        ({"url": "syslog://T0secret0"}, "choose a service that people read"),
        ({"event": []}, "events:"),
    ],
)
def test_a_refused_target_keeps_the_form(browser: Browser, changes: dict[str, object], why: str) -> None:
    """The reason is next to the field."""
    answer = browser.post(PAGE, SLACK | changes)
    assert answer.status_code == 400
    assert why in text_of(answer.text)
    assert "Value error" not in answer.text
    assert 'aria-describedby="url-hint problem"' in answer.text
    assert "No notification target" in browser.get(PAGE).text


def test_projects_of_experiments_are_offered(bench: Bench, browser: Browser) -> None:
    """A target reports the runs of one project."""
    assert '<option value="vision"' in browser.get(PAGE).text
    browser.post(PAGE, SLACK | {"runs": "vision"})
    assert "project vision" in text_of(browser.get(PAGE).text)
