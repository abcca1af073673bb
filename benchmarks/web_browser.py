"""Browser work for the page of a long run: time to the first chart, and bytes sent.

Playwright drives Debian's Chromium. The browser's own clock measures from the start of the navigation.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.figure import Figure
from benchmarks.services import ControlPlane
from dispatcher.pages.live_pages import TABS

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page, ViewportSize

CHART_S, WEIGHT_KB, OVERVIEW_KB = 1.5, 150.0, 60.0

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
IS_SETTLED = """() => [...document.querySelectorAll("[data-figure]")].every((figure) =>
    figure.querySelector(".js-plotly-plot .main-svg") || figure.querySelector(".figure-said")?.textContent)"""
"""JavaScript: true if every figure of a page is drawn, or states why it is empty."""
_CHARTS = {"overview": "", "curves": "/curves"}
"""Tabs whose first chart is awaited."""
_VISITS = 5
_LEARNING = 3
"""Number of visits until a browser keeps a script compiled."""
_WINDOW: ViewportSize = {"width": 1280, "height": 800}
_TIMEOUT_MS = 30_000
_WATCH = """
    const seen = () => requestAnimationFrame(() => setTimeout(() => (window.seenAt ??= performance.now())));
    document.addEventListener("load", (event) => event.target.matches?.(".static-svg img") && seen(), true);
    new MutationObserver(() => {
        if (!window.drawnAt && document.querySelector(".js-plotly-plot .scatterlayer .trace path")) {
            window.drawnAt = performance.now();
            seen();
        }
    }).observe(document, { childList: true, subtree: true })"""
"""A chart counts as seen after the frame that paints its picture or the figure itself."""


@dataclass(frozen=True, kw_only=True)
class Looked:
    """Measurements by tab, as medians over visits by a new browser and by a returning one with compiled scripts.

    Seconds until the first chart is seen and until plotly draws it; bytes sent, without plotly's script.
    """

    cold: dict[str, Wait]
    warm: dict[str, Wait]
    sent: dict[str, float]


class Wait(NamedTuple):
    """Seconds until a chart is seen, and until it answers the pointer."""

    seen_s: float
    drawn_s: float


def look(plane: ControlPlane, experiment: str) -> Looked:
    """Open the experiment's page repeatedly."""
    from playwright.sync_api import sync_playwright

    cold: dict[str, list[Wait]] = {tab: [] for tab in _CHARTS}
    warm: dict[str, list[Wait]] = {tab: [] for tab in _CHARTS}
    page_of = f"{plane.page}/experiments/{experiment}"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        for tab, path in _CHARTS.items():
            for _ in range(_VISITS):
                with signed_in(browser.new_context(viewport=_WINDOW), plane) as reader:
                    cold[tab].append(_waited(reader, page_of + path))
        sent = {}
        for tab, _, _ in TABS:
            with signed_in(browser.new_context(viewport=_WINDOW), plane) as reader:
                sent[tab] = sent_bytes(reader.new_page(), page_of + _CHARTS.get(tab, f"/{tab}"))
        browser.close()
        with tempfile.TemporaryDirectory(prefix="cerebro-bench-") as folder:
            profile = playwright.chromium.launch_persistent_context(
                folder, executable_path=CHROMIUM, args=list(ARGUMENTS), viewport=_WINDOW
            )
            with signed_in(profile, plane) as reader:
                for tab, path in _CHARTS.items():
                    visits = [_waited(reader, page_of + path) for _ in range(_LEARNING + _VISITS)]
                    warm[tab] += visits[_LEARNING:]
    return Looked(
        cold={tab: _median(waits) for tab, waits in cold.items()},
        warm={tab: _median(waits) for tab, waits in warm.items()},
        sent=sent,
    )


def figures(found: Looked, what: str) -> list[Figure]:
    """Return figures of the measurements; `what` starts each description."""
    heaviest = max(found.sent, key=lambda tab: found.sent[tab])
    return [
        *(
            Figure(
                what=f"{what}: first chart {done} in Chromium, {who}",
                measured=", ".join(f"{tab} {wait[part]:.2f} s" for tab, wait in waits.items()),
                ratio=max(wait[part] for wait in waits.values()),
                bar=CHART_S,
                sense="at most",
                measure="s",
            )
            for part, done in enumerate(("seen as a picture", "drawn by plotly"))
            for who, waits in (
                ("which was there before", found.warm),
                ("which has nothing yet", found.cold),
            )
        ),
        Figure(
            what=f"{what}: page weight without plotly's script, its figures' data included",
            measured=f"the heaviest is {heaviest}",
            ratio=found.sent[heaviest] / 1e3,
            bar=WEIGHT_KB,
            sense="at most",
            measure="kB",
            notes=("kB by tab: " + ", ".join(f"{tab} {size / 1e3:.0f}" for tab, size in found.sent.items()),),
        ),
        Figure(
            what=f"{what}: weight of the overview without plotly's script, its figure's data included",
            measured=f"{found.sent['overview'] / 1e3:.0f} kB",
            ratio=found.sent["overview"] / 1e3,
            bar=OVERVIEW_KB,
            sense="at most",
            measure="kB",
        ),
    ]


@contextmanager
def signed_in(context: BrowserContext, plane: ControlPlane) -> Iterator[BrowserContext]:
    """Yield the context after sign-in."""
    context.set_default_timeout(_TIMEOUT_MS)
    context.add_init_script(_WATCH)
    page = context.new_page()
    page.goto(f"{plane.page}/sign-in")
    page.get_by_label("Token of the cluster").fill(plane.token)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{plane.page}/experiments")
    page.close()
    yield context
    context.close()


def _waited(reader: BrowserContext, url: str) -> Wait:
    page = reader.new_page()
    page.goto(url, wait_until="commit")
    page.wait_for_function("() => window.drawnAt && window.seenAt")
    seen_ms, drawn_ms = page.evaluate("[window.seenAt, window.drawnAt]")
    page.close()
    return Wait(seen_ms / 1000, drawn_ms / 1000)


def _median(waits: list[Wait]) -> Wait:
    return Wait(*(statistics.median(times) for times in zip(*waits, strict=True)))


def sent_bytes(page: Page, url: str) -> float:
    """Return the bytes of a page and its requests for a new browser, without plotly's script."""
    sizes: dict[str, float] = {}
    plotly: set[str] = set()

    def answered(event: dict[str, Any]) -> None:
        if "/plotly." in event["response"]["url"]:
            plotly.add(event["requestId"])

    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    session.send("Network.setCacheDisabled", {"cacheDisabled": True})
    session.on("Network.responseReceived", answered)
    session.on(
        "Network.loadingFinished",
        lambda event: sizes.update({event["requestId"]: event["encodedDataLength"]}),
    )
    page.goto(url)
    page.wait_for_function(IS_SETTLED)
    return sum(size for request, size in sizes.items() if request not in plotly)
