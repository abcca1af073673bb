"""The security headers forbid foreign and inline scripts, and no page needs either."""

from __future__ import annotations

import re

import pytest

from tests.dispatcher.access.surface import routes
from tests.dispatcher.fakes import Bench


@pytest.mark.parametrize(
    "path", ["/sign-in", "/experiments", "/start", "/nowhere", "/health", "/static/style.css"]
)
def test_headers_of_every_answer(bench: Bench, path: str) -> None:
    """No foreign or inline script, no frame, no sniffing, no referrer to other sites; pages are not
    cached."""
    headers = bench.signed_in().get(path).headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "same-origin"
    assert ("no-store" in headers["Cache-Control"]) == (not path.startswith("/static"))


@pytest.mark.slow
def test_pages_have_no_inline_script_or_style(bench: Bench) -> None:
    """The policy blocks inline code; this test finds it without a browser."""
    browser = bench.signed_in()
    pages = [path for method, path, _ in routes(bench) if method == "GET" and not path.startswith("/api/")]
    for path in [*pages, "/nowhere"]:
        answer = browser.get(path)
        # A report is a file for download. Browsers never show it as a page of this host.
        is_saved = answer.headers.get("Content-Disposition", "").startswith("attachment")
        if answer.mimetype == "text/html" and not is_saved:
            found = re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=|javascript:", answer.text)
            assert not found, (path, found)
