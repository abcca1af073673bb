"""A session's cookie: out of reach of scripts, signed, good after a restart; and where the sign-in leads."""

from __future__ import annotations

import pytest

from dispatcher.access.guard import local_path
from tests.dispatcher.fakes import TOKEN, Bench, Browser, settings


def test_cookie_is_out_of_reach_of_scripts_and_other_sites(bench: Bench) -> None:
    """HttpOnly, SameSite, named for this port; Secure where a proxy speaks TLS; and the token is not in
    it."""
    cookie = bench.browser().get("/sign-in").headers["Set-Cookie"]
    assert cookie.startswith("cerebro-7080=")
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert "Secure" not in cookie
    assert TOKEN not in cookie
    secure = Bench(settings=settings(is_https=True)).browser().get("/sign-in").headers["Set-Cookie"]
    assert "Secure" in secure


def test_forged_cookie(bench: Bench) -> None:
    """A session is worth what its signature is worth."""
    elsewhere = Bench(settings=settings(token="another-cluster")).browser()
    elsewhere.post("/sign-in", {"token": "another-cluster"})
    cookie = elsewhere.client.get_cookie("cerebro-7080", "127.0.0.1")
    assert cookie
    browser = bench.browser()
    browser.client.set_cookie("cerebro-7080", cookie.value, domain="127.0.0.1")
    assert browser.get("/experiments").status_code == 303


def test_session_outlives_a_restart_of_the_page(bench: Bench) -> None:
    """Its key comes from the token, not from the process."""
    browser = bench.signed_in()
    cookie = browser.client.get_cookie("cerebro-7080", "127.0.0.1")
    assert cookie
    again = Browser(Bench().app)
    again.client.set_cookie("cerebro-7080", cookie.value, domain="127.0.0.1")
    assert again.get("/experiments").status_code == 200


@pytest.mark.parametrize(
    "target",
    [
        "http://evil.example",
        "//evil.example",
        "/\\evil.example",
        "\\\\evil",
        "javascript:alert(1)",
        "evil",
        "",
        "/a\nb",
        "/\t/evil",
    ],
)
def test_sign_in_leads_nowhere_else(target: str) -> None:
    """Only paths of this page are followed."""
    assert local_path(target, "/experiments") == "/experiments"


def test_sign_in_leads_to_local_paths() -> None:
    """With their query."""
    assert local_path("/experiments/digits?fit=fit-1", "/") == "/experiments/digits?fit=fit-1"
