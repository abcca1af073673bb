"""Plotly in a browser under the page's security policy: all figures draw and nothing is blocked."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest

import dispatcher
from cerebro.client.reporting.plotting import plotly_script
from cerebro.figures import CONFIG, Theme
from tests.dispatcher.fakes import Bench, settings
from tests.e2e.browser import window
from tests.figures.samples import gallery
from tests.http_server import HttpServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow

_STATIC = Path(dispatcher.__file__).parent / "pages"

_PAGE = """<!doctype html><html lang="en"><title>figures</title>
<link rel="stylesheet" id="plotly.js-style-global" class="no-inline-styles" href="/plotly.css">
<body>{places}<script src="/plotly.js"></script><script src="/draw.js"></script></body></html>"""

# As in `dispatcher/pages/figures.js`.
_DRAW = """
const set = Element.prototype.setAttribute;
Element.prototype.setAttribute = function (name, value) {
  if (name === "style") this.style.cssText = value; else set.call(this, name, value);
};
const { figures, config } = %s;
(async () => {
  for (const [id, { data, layout }] of Object.entries(figures)) await Plotly.newPlot(id, data, layout, config);
  window.image = await Plotly.toImage("heatmap", { format: "png" });
  window.isDone = true;
})();
"""


@pytest.fixture(params=get_args(Theme))
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """Serve a page with a figure of each kind under the dispatcher's policy."""
    figures, policy = gallery(request.param), _policy()
    files = {
        "/": ("text/html", _PAGE.format(places="".join(f'<div id="{name}"></div>' for name in figures))),
        "/plotly.js": ("text/javascript", plotly_script()),
        "/plotly.css": ("text/css", (_STATIC / "plotly.css").read_text()),
        "/draw.js": ("text/javascript", _DRAW % json.dumps({"figures": figures, "config": CONFIG})),
        "/favicon.ico": ("image/x-icon", ""),
    }

    class Files(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, content = files[self.path]
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Security-Policy", policy)
            self.end_headers()
            self.wfile.write(content.encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HttpServer(("127.0.0.1", 0), Files)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


def _policy() -> str:
    """Return the policy header of the dispatcher's pages."""
    answer = Bench(settings=settings()).app.test_client().get("/sign-in")
    return answer.headers["Content-Security-Policy"]


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with window(browser) as context:
        yield context.new_page()


def _opened(page: Page, address: str) -> list[str]:
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(f"dialog: {dialog.message}"))
    page.goto(address)
    return said


def test_every_figure_is_drawn_and_nothing_is_blocked(page: Page, address: str) -> None:
    """No message of the browser or of Plotly, no script from user text; images can be exported."""
    said = _opened(page, address)
    page.wait_for_function("window.isDone")
    assert said == []
    assert page.evaluate("image").startswith("data:image/png;base64,")
    assert page.locator("script").count() == 2
    for name, figure in gallery("light").items():
        drawn = page.locator(f"#{name} .main-svg")
        assert drawn.count() >= 2, f"{name} is not drawn"
        shown = page.locator(
            f"#{name} .trace, #{name} .hm image, #{name} .bars .point, #{name} .scatter"
        ).count()
        assert (shown > 0) is bool(figure["data"]), f"{name} has no marks"


def test_the_shipped_style_rules_equal_those_of_plotly(page: Page) -> None:
    """After an update of plotly, copy the rules again; the error lists missing ones."""
    page.set_content("<div id=a></div>")
    page.add_script_tag(content=plotly_script())
    page.evaluate("Plotly.newPlot('a', [{ y: [1] }])")
    sheet = "document.getElementById('plotly.js-style-global').sheet.cssRules"
    rules = page.evaluate(f"[...{sheet}].map(rule => rule.cssText)")
    page.add_style_tag(content=(_STATIC / "plotly.css").read_text())
    ours = page.evaluate("[...document.styleSheets].at(-1).cssRules.length")
    shipped = page.evaluate("[...[...document.styleSheets].at(-1).cssRules].map(rule => rule.cssText)")
    assert set(rules) - set(shipped) == set()
    assert ours >= len(set(rules))


def test_the_policy_lets_no_other_script_run() -> None:
    """The figures need no exception."""
    scripts = next(part for part in _policy().split(";") if part.strip().startswith("script-src"))
    assert scripts.split() == ["script-src", "'self'"]
