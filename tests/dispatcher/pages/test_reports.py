"""Reports and tables are generated without blocking other requests."""

from __future__ import annotations

import threading

import pytest
from werkzeug.test import TestResponse

from dispatcher.models import view as models_view
from dispatcher.overview import report
from tests.dispatcher.fakes import TOKEN, Bench, Browser
from tests.dispatcher.stories import running_story
from tests.waiting import HANG_S


def test_long_downloads_do_not_block_other_requests(
    bench: Bench, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow download does not block other requests; one report is generated at a time."""
    bench.store.add(running_story())
    observed: list[int] = []

    def read_page(*_: object, **__: object) -> str:
        at = threading.Thread(target=lambda: observed.append(browser_of_another().status_code))
        at.start()
        at.join(HANG_S)
        return "written"

    def browser_of_another() -> TestResponse:
        return bench.app.test_client().get(
            "/api/views/experiments/digits", headers={"Authorization": f"Bearer {TOKEN}"}
        )

    monkeypatch.setattr(report, "report_html", read_page)
    monkeypatch.setattr(models_view, "csv_text", read_page)
    assert browser.get("/experiments/digits/report").text == "written"
    assert browser.get("/api/views/experiments/digits/models.csv").text == "written"
    assert observed == [200, 200]


def test_one_report_is_generated_at_a_time(
    bench: Bench, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second request is asked to retry."""
    bench.store.add(running_story())
    inner: list[int] = []

    def write(*_: object, **__: object) -> str:
        inner.append(bench.signed_in().get("/experiments/digits/report").status_code)
        return "written"

    monkeypatch.setattr(report, "report_html", write)
    monkeypatch.setattr(report, "_WAIT_S", 0.0)
    assert browser.get("/experiments/digits/report").status_code == 200
    assert inner == [503]
