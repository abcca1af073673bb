"""Browsers render user text as text, and the security policy blocks scripts."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.dispatcher.fakes import TOKEN, Bench
from tests.dispatcher.gallery import TABS, gallery, paths
from tests.dispatcher.hostile import IMAGE, SCRIPT, hostile
from tests.dispatcher.serving import serving
from tests.e2e.browser import Complaints, settle, sign_in, window

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


EVIL = (
    *TABS, "/add", f"/clone?model={quote(IMAGE)}&hp.{quote(SCRIPT)}={quote(SCRIPT)}",
    f"/change?model={quote(IMAGE)}", f"/models/{quote(IMAGE)}", f"/models?pick={quote(IMAGE)},m03",
    f"/models?filter={quote(SCRIPT)}",
    f"/curves?pick={quote(IMAGE)}&axis=rows", f"/logs?q={quote(SCRIPT)}", f"/logs?task={quote(SCRIPT)}", "/delete",
    f"/logs?task={quote(f'fit-1/train/{IMAGE}/e1/p0')}", f"/code?spec={quote(SCRIPT)}",
    f"/schedule?model={quote(IMAGE)}",
)  # fmt: skip
"""Pages of the hostile experiment."""


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return hostile(tmp_path_factory.mktemp("volumes"))


@pytest.fixture(scope="module")
def evil_address(evil: Bench) -> Iterator[str]:
    with serving(evil.app) as at:
        yield at


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with window(browser) as context:
        yield context.new_page()


def is_untouched(page: Page) -> bool:
    """Return True if no user text became an element or ran."""
    return bool(
        page.evaluate("window.x !== 1 && document.querySelector('[onerror], script:not([src])') === null")
    )


@pytest.mark.processes
@pytest.mark.slow
def test_markup_in_names_is_text_on_every_page(page: Page, evil_address: str) -> None:
    """For every text that a user controls, also in the data tables and hover texts of figures."""
    complaints = Complaints()
    complaints.listen(page)
    sign_in(page, evil_address, TOKEN)
    for path in (
        "/experiments",
        f"/experiments?q={quote(SCRIPT)}",
        "/cluster",
        *(f"/experiments/evil{p}" for p in EVIL),
    ):
        page.goto(evil_address + path)
        settle(page)
        for opener in page.locator("details:not(.menu) > summary").all():
            if opener.is_visible():
                opener.click()
        assert is_untouched(page), path
    complaints.check(allowed=("status of 404", "status of 400"))


@pytest.mark.processes
@pytest.mark.slow
def test_markup_is_text_in_hover_labels(page: Page, evil_address: str) -> None:
    """Hover over each mark of each figure, since Plotly renders its text as HTML."""
    sign_in(page, evil_address, TOKEN)
    count = 0
    for tab in ("/curves", "/analysis", "/schedule"):
        page.goto(f"{evil_address}/experiments/evil{tab}")
        settle(page)
        count += page.evaluate(
            """async () => {
                let texts = 0;
                for (const plot of document.querySelectorAll(".js-plotly-plot")) {
                    for (const [curveNumber, trace] of (plot.data || []).entries()) {
                        const many = Math.min((trace.y || trace.x || []).length, 20);
                        for (let pointNumber = 0; pointNumber < many; pointNumber += 1) {
                            try { Plotly.Fx.hover(plot, [{curveNumber, pointNumber}]); } catch { continue; }
                            texts += plot.querySelectorAll(".hovertext").length;
                        }
                    }
                }
                return texts;
            }"""
        )
        assert is_untouched(page), tab
    assert count > 0


@pytest.mark.processes
@pytest.mark.slow
def test_markup_is_text_in_the_report(page: Page, evil: Bench, tmp_path: Path) -> None:
    """A report opened from disk has no policy, so only escaping protects the reader."""
    report = evil.signed_in().get("/experiments/evil/report")
    assert report.status_code == 200
    assert SCRIPT not in report.text
    assert IMAGE not in re.sub(r"<script[^>]*>.*?</script>", "", report.text, flags=re.DOTALL)
    (tmp_path / "report.html").write_text(report.text)
    page.goto((tmp_path / "report.html").as_uri())
    page.locator(".js-plotly-plot .main-svg").first.wait_for()
    assert page.evaluate("window.x !== 1 && document.querySelector('[onerror]') === null")
    assert SCRIPT in page.inner_text("body")


@pytest.mark.processes
@pytest.mark.slow
def test_an_injected_script_does_not_run(page: Page, evil_address: str) -> None:
    """The policy is the second line of defence against inline scripts, handlers and eval."""
    sign_in(page, evil_address, TOKEN)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.x = 1";
            document.body.append(script);
            document.body.insertAdjacentHTML("beforeend", "<img src=/nowhere.png onerror='window.x = 1'>");
        }"""
    )
    page.wait_for_function("() => document.images[document.images.length - 1].complete")
    assert page.evaluate("window.x") != 1
    assert sum("Content Security Policy" in text for text in said) >= 2


@pytest.mark.commands
def test_markup_is_escaped_in_every_answer(evil: Bench) -> None:
    """In every page, fragment, image and read answer that is HTML; JSON has a JSON content type."""
    client = evil.signed_in()
    for path in ("/experiments", "/cluster", *(f"/experiments/evil{each}" for each in EVIL)):
        for prefix in ("", "/fragments"):
            answer = client.get(prefix + path)
            assert SCRIPT not in answer.text, prefix + path
            assert IMAGE not in answer.text, prefix + path
    for rule in evil.app.url_map.iter_rules():
        if rule.rule.startswith("/api/views/") and rule.arguments <= {"name"}:
            answer = client.get(rule.rule.replace("<name:name>", "evil"))
            assert answer.mimetype in ("application/json", "text/csv", "image/svg+xml"), rule.rule
            if answer.mimetype == "image/svg+xml":
                assert SCRIPT not in answer.text
                assert IMAGE not in answer.text
            assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.commands
def test_the_token_is_in_no_answer_and_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not in pages, headers, addresses, log lines or the OpenAPI document."""
    caplog.set_level(logging.DEBUG)
    bench = gallery(tmp_path)
    client = bench.signed_in()
    requests = [
        *paths(),
        "/openapi.json",
        "/metrics",
        "/api/views/experiments",
        "/api/views/cluster",
        "/api/views/volumes",
    ]
    for path in requests:
        answer = client.get(path)
        assert TOKEN not in answer.text, path
        assert TOKEN not in str(answer.headers), path
    wrong = bench.browser().post("/sign-in", {"token": f"{TOKEN}x"})
    assert TOKEN not in wrong.text
    assert TOKEN not in caplog.text


@pytest.mark.parametrize(
    "path",
    [
        "/api/volumes/{volume}/../../secret", "/api/volumes/{volume}/%2e%2e/%2e%2e/secret",
        "/api/volumes/{volume}/..%2f..%2fsecret", "/api/volumes/{volume}//etc/passwd", "/api/volumes/../secret/x",
        "/experiments/digits/checkpoints/../../secret", "/experiments/digits/checkpoints/..%2f..%2f..%2fsecret",
        "/experiments/digits/checkpoints//etc/passwd", "/experiments/digits/logs/file?task=../../../secret&attempt=1",
        "/experiments/digits/logs/file?task=%2e%2e/secret&attempt=1", "/static/../settings.py",
        "/static/..%2fsettings.py", "/experiments/digits/logs?task=../../secret",
        "/api/views/experiments/digits/failed-rows?split=../../secret&partition=0",
    ],
)  # fmt: skip
@pytest.mark.parametrize("volume", ["checkpoints", "logs"])
def test_files_outside_the_volumes_are_not_sent(tmp_path: Path, path: str, volume: str) -> None:
    """For every kind of path traversal."""
    (tmp_path / "secret").write_text("the secret beside the volumes")
    bench = gallery(tmp_path / "volumes")
    (tmp_path / "volumes" / "secret").write_text("the secret beside the volumes")
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    answer = bench.app.test_client().get(
        path.format(volume=volume), headers=bearer, base_url="http://127.0.0.1:7080", buffered=True
    )
    assert b"the secret" not in answer.data
    assert b"root:" not in answer.data
    assert b"CEREBRO_BIND" not in answer.data
    assert answer.status_code in (200, 400, 404)
