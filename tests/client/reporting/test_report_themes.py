"""A report is light or dark as its reader's system is, and light on paper."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cerebro.client.reporting import report_html
from cerebro.figures import THEME_COLORS, in_dark
from tests.client.reporting.stories import RECORD, reported
from tests.e2e.browser import window

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_WAIT_MS = 60_000
GROUND = {theme: colors.ground for theme, colors in THEME_COLORS.items()}


@pytest.fixture(scope="module")
def report() -> str:
    story = reported()
    return report_html(story.state, story.run, record=RECORD, now=story.time)


def data(report: str) -> dict[str, Any]:
    """What the script draws."""
    (found,) = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', report, re.DOTALL)
    return dict(json.loads(found))


def test_the_sheet_has_both_themes_and_paper_is_light(report: str) -> None:
    """Dark is for screens alone."""
    (sheet,) = re.findall(r"<style>(.*?)</style>", report, re.DOTALL)
    light, dark = sheet.split("@media screen and (prefers-color-scheme: dark)")
    assert f"--ground: {GROUND['light']}" in light
    assert f"--ground: {GROUND['dark']}" in dark.partition("@media print")[0]
    assert sheet.count("{") == sheet.count("}")


def test_each_colour_of_the_figures_has_its_dark_one(report: str) -> None:
    """The file holds the figures once."""
    found = data(report)
    assert len(found["drawn"]) == 6
    assert found["dark"][GROUND["light"]] == GROUND["dark"]
    assert all(dark == in_dark(light) for light, dark in found["dark"].items())
    for figure in found["drawn"]:
        assert figure["layout"]["paper_bgcolor"] in found["dark"]


# --- in a browser ------------------------------------------------------------------------------------


@pytest.fixture
def page(browser: Browser, report: str, tmp_path: Path) -> Iterator[Page]:
    file = tmp_path / "report.html"
    file.write_text(report, encoding="utf-8")
    with window(browser, scheme="dark", offline=True) as context:
        opened = context.new_page()
        opened.goto(file.as_uri())
        opened.wait_for_selector("#figure-schedule .main-svg", timeout=_WAIT_MS)
        yield opened


def grounds(page: Page) -> set[str]:
    """Behind the figures."""
    places = page.evaluate(
        "[...document.querySelectorAll('.js-plotly-plot')].map((p) => p.layout.paper_bgcolor)"
    )
    assert len(places) == 6
    return set(places)


@pytest.mark.slow
def test_it_follows_the_readers_system(page: Page) -> None:
    """When it is opened, and when that changes while it is open."""
    seen = "getComputedStyle(document.body).backgroundColor"
    assert grounds(page) == {GROUND["dark"]}
    assert page.evaluate(seen) == "rgb(26, 32, 39)"
    page.emulate_media(color_scheme="light")
    redrawn = "(ground) => document.querySelector('#figure-schedule').layout.paper_bgcolor === ground"
    page.wait_for_function(redrawn, arg=GROUND["light"])
    assert grounds(page) == {GROUND["light"]}
    assert page.evaluate(seen) == "rgb(255, 255, 255)"


@pytest.mark.slow
def test_paper_is_light(page: Page) -> None:
    """Nothing in the file that is printed has the dark ground, the figures included; the screen is dark again
    afterwards."""
    printed = page.pdf(format="A4", print_background=True)
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", printed, re.DOTALL)
    drawn = b"".join(_unpacked(stream) for stream in streams)
    fills = set(re.findall(rb"([.\d]+) ([.\d]+) ([.\d]+) rg", drawn))
    colours = {tuple(round(255 * float(part)) for part in fill) for fill in fills}
    assert (255, 255, 255) in colours
    assert (26, 32, 39) not in colours
    assert (0, 0x60, 0x9B) in colours, "the first model's colour on light ground"
    assert grounds(page) == {GROUND["dark"]}


def _unpacked(stream: bytes) -> bytes:
    try:
        return zlib.decompress(stream)
    except zlib.error:  # a font or a picture
        return b""
