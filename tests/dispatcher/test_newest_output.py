"""A running model's page shows its latest output line with a link to the log."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cerebro.runtime.volumes import Volumes
from tests.dispatcher.fakes import Bench, Browser, settings
from tests.dispatcher.gallery import write_log
from tests.dispatcher.stories import running_story

SUB_EPOCH = "fit-1/train/m05/e1/p0"
PAGE = "/experiments/digits/models/m05"


@pytest.fixture
def volumes(tmp_path: Path) -> Volumes:
    return Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)})


@pytest.fixture
def browser(volumes: Volumes) -> Browser:
    """Open a browser on a fit in which m05 runs."""
    bench = Bench(settings=settings(volumes=volumes))
    bench.store.add(running_story())
    return bench.signed_in()


def foot(browser: Browser, path: str = PAGE) -> str:
    found = re.search(r'<p class="newest".*?</p>', browser.get(path).text, re.S)
    return found[0] if found else ""


def test_the_newest_line_links_to_its_log(volumes: Volumes, browser: Browser) -> None:
    """Blank lines are skipped, and terminal colours removed."""
    write_log(volumes, "digits", SUB_EPOCH, "first\n\x1b[33mloss\x1b[0m <b>0.5</b>\n\n")
    shown = foot(browser)
    assert "<code>loss &lt;b&gt;0.5&lt;/b&gt;</code>" in shown
    assert f'href="/experiments/digits/logs?task={SUB_EPOCH}&amp;attempt=1"' in shown
    assert "first" not in shown


def test_a_printed_line_refreshes_the_page(volumes: Volumes, browser: Browser) -> None:
    """New output refreshes the page, although the event log does not grow."""
    write_log(volumes, "digits", SUB_EPOCH, "batch 1\n")
    address = f"/fragments{PAGE}"
    tag = browser.get(address).headers["ETag"]
    headers = {"If-None-Match": tag, "Accept": "text/html"}

    def again() -> int:
        where = {"base_url": "http://127.0.0.1:7080", "headers": headers}
        return browser.client.get(address, buffered=True, **where).status_code

    assert again() == 304
    write_log(volumes, "digits", SUB_EPOCH, "batch 1\nbatch 2\n")
    assert again() == 200
    assert "<code>batch 2</code>" in foot(browser, address)


def test_a_sub_epoch_without_output_is_marked(browser: Browser) -> None:
    """The link works before the first line."""
    assert "no output yet" in foot(browser)


def test_a_model_that_does_not_run_has_no_newest_line(volumes: Volumes, browser: Browser) -> None:
    """The table of sub-epochs links to finished logs."""
    write_log(volumes, "digits", "fit-1/train/m07/e1/p0", "its last words\n")
    assert foot(browser, "/experiments/digits/models/m07") == ""
    assert foot(browser, "/experiments/digits/models/m00") == ""
