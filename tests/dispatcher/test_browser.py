"""The pages as a browser draws and runs them: signing in, starting an experiment, watching it live."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import waitress.server

from cerebro.archive import pack
from tests.dispatcher.fakes import TOKEN, Bench, settings
from tests.dispatcher.stories import NOW, Story, running_story, status

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

_CHROMIUM = Path("/usr/bin/chromium")
_ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
_WAIT_MS = 20_000


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    if find_spec("playwright") is None or not _CHROMIUM.exists():
        missing = "the browser tests need playwright and /usr/bin/chromium"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(_CHROMIUM), args=list(_ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture
def bench() -> Bench:
    bench = Bench(settings=settings(link_notebook="http://127.0.0.1:8888"))
    bench.store.add(running_story())
    bench.store.statuses = [status("worker-0"), status("worker-1")]
    return bench


@pytest.fixture
def address(bench: Bench) -> Iterator[str]:
    server = waitress.server.create_server(bench.app, host="127.0.0.1", port=0, threads=4)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.effective_port}"
    # `close` takes the listening socket out of the loop, which ends with its last channel.
    server.close()


@pytest.fixture
def context(chromium: Browser) -> Iterator[BrowserContext]:
    context = chromium.new_context()
    context.set_default_timeout(_WAIT_MS)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A page that must not break its own policy: scripts and styles that the CSP blocks end up here."""
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield page
    assert [text for text in complaints if "Security Policy" in text or "Error" in text] == []


def sign_in(page: Page, address: str, path: str = "/experiments") -> None:
    page.goto(address + path)
    page.fill("#token", TOKEN)
    page.keyboard.press("Enter")
    page.wait_for_url(address + path)


def test_from_sign_in_to_a_new_experiment_in_the_list(
    page: Page, address: str, bench: Bench, tmp_path: Path
) -> None:
    """What a user does: a wrong token, the right one, a mistake in the form, its correction, the list."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "model.py").write_bytes(b"x = 1")
    (tmp_path / "code.zip").write_bytes(pack(tmp_path / "code"))
    page.goto(f"{address}/start")
    page.fill("#token", "guess")
    page.click("main button[type=submit]")
    page.wait_for_selector("[role=alert]")
    page.fill("#token", TOKEN)
    page.click("main button[type=submit]")
    page.wait_for_url(f"{address}/start")

    page.fill("#name", "My Whales")
    page.fill("#train_metadata", "/data/whales.csv")
    page.set_input_files("#archive", tmp_path / "code.zip")
    page.click("text=Create experiment")
    page.wait_for_selector("#name-mistake")
    assert page.input_value("#train_metadata") == "/data/whales.csv"
    assert page.is_visible("text=model.py")
    page.fill("#name", "whales")
    page.click("text=Create experiment")
    page.wait_for_url(f"{address}/experiments/whales")
    assert bench.store.records["whales"].archive in bench.store.archives

    page.click("nav >> text=Experiments")
    page.wait_for_selector("table >> text=whales")
    assert page.is_visible("table >> text=digits")
    page.click("text=Sign out")
    page.wait_for_url(f"{address}/sign-in")


def test_page_follows_the_run(page: Page, address: str, bench: Bench) -> None:
    """New events show without a reload, what the reader opened stays open, and the title tells the share."""
    sign_in(page, address, "/experiments/digits")
    page.click("summary")
    story = Story("digits", began=NOW - 120)
    story.events = bench.store.logs["digits"]
    for event in story.events:
        story.state.apply(event)
    story.pause("the checkpoint volume is full")
    page.click("h1")
    page.wait_for_selector("text=fit-1 is paused")
    assert page.is_visible("text=Traceback")
    assert "paused" in page.title()


def test_chart_grows_and_waits_while_a_bar_is_pointed_at(page: Page, address: str, bench: Bench) -> None:
    """Units that run are drawn up to now; a tooltip is not taken away under the pointer."""
    sign_in(page, address, "/experiments/digits")
    bar = page.locator(".gantt path", has=page.locator("title", has_text="m05, partition 0"))
    before = bar.bounding_box()
    bench.clock.now += 30.0
    page.wait_for_selector("text=live,")
    after = bar.bounding_box()
    assert before is not None
    assert after is not None
    assert after["width"] / after["height"] > before["width"] / before["height"]
    bar.hover()
    page.wait_for_selector("text=paused while you read")
    page.hover("h1")
    page.wait_for_selector("text=live,")


def test_failed_refresh_keeps_the_last_data(page: Page, address: str, context: BrowserContext) -> None:
    """Dimmed, with the time since when there is no answer."""
    sign_in(page, address, "/experiments/digits")
    context.set_offline(True)
    page.wait_for_selector("#live.stale")
    assert page.is_visible("text=no answer since")
    assert page.is_visible("table >> text=m04")
    context.set_offline(False)
    page.wait_for_selector("#live:not(.stale)")


def test_archive_that_is_too_large_is_not_sent(
    page: Page, address: str, bench: Bench, tmp_path: Path
) -> None:
    """The script says so before 33 MiB go over the wire; the server would too."""
    sign_in(page, address, "/start")
    (tmp_path / "big.zip").write_bytes(bytes(33 * 1024 * 1024))
    page.set_input_files("#archive", tmp_path / "big.zip")
    page.wait_for_selector("text=This file is 33.0 MiB, the limit is 32.0 MiB.")
    page.fill("#name", "whales")
    page.click("text=Create experiment")
    assert page.url == f"{address}/start"
    assert "create_experiment" not in bench.store.calls


def test_pages_work_without_scripts(chromium: Browser, address: str) -> None:
    """All of it but the refreshing."""
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.set_default_timeout(_WAIT_MS)
    sign_in(page, address)
    page.click("text=digits")
    page.wait_for_url(f"{address}/experiments/digits")
    assert page.is_visible("text=trains m05, epoch 1, partition 0")
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_fit_and_can_be_read(
    chromium: Browser, address: str, scheme: str, width: int, tmp_path: Path
) -> None:
    """No page is wider than its window; pictures are left in the test's folder for people to look at."""
    colours = "dark" if scheme == "dark" else "light"
    context = chromium.new_context(color_scheme=colours, viewport={"width": width, "height": 844})  # type: ignore[arg-type]
    page = context.new_page()
    page.set_default_timeout(_WAIT_MS)
    sign_in(page, address)
    for path in ("/experiments", "/experiments/digits", "/start", "/nowhere"):
        page.goto(address + path)
        page.screenshot(path=tmp_path / f"{path.replace('/', '_')}-{scheme}-{width}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
    context.close()
