"""A served dispatcher with a running fit, and a page that fails on policy violations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from dispatcher.settings import Links
from tests.dispatcher.browsing.growing import Ticking
from tests.dispatcher.fakes import Bench, settings
from tests.dispatcher.serving import serving
from tests.dispatcher.stories import running_story, status
from tests.e2e.browser import Complaints, window

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page


@pytest.fixture
def bench() -> Bench:
    bench = Bench(settings=settings(links=Links(notebook="http://127.0.0.1:8888")), monotonic=Ticking())
    bench.store.add(running_story())
    bench.store.statuses = [status("worker-0"), status("worker-1")]
    return bench


@pytest.fixture
def address(bench: Bench) -> Iterator[str]:
    with serving(bench.app) as at:
        yield at


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    with window(browser) as context:
        yield context


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """Open a page; scripts and styles that the policy blocks fail the test by console messages."""
    complaints = Complaints()
    page = complaints.listen(context.new_page())
    yield page
    complaints.check(allowed=("Failed to load resource", "ERR_INTERNET_DISCONNECTED", "[DOM]"))
