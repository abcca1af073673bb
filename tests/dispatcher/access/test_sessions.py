"""Session cookies are signed, unreadable for scripts, and survive a restart."""

from __future__ import annotations

import re

import pytest

from dispatcher.access.guard import local_path
from dispatcher.access.sessions import FRESH_S
from dispatcher.pages.poll_cache import TRUSTED_S
from tests.dispatcher.fakes import TOKEN, Bench, Browser, settings


def test_cookie_is_protected_from_scripts_and_other_sites(bench: Bench) -> None:
    """HttpOnly, SameSite, named for the port, and Secure behind a TLS proxy."""
    cookie = bench.browser().get("/sign-in").headers["Set-Cookie"]
    assert cookie.startswith("cerebro-7080=")
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert "Secure" not in cookie
    assert TOKEN not in cookie
    secure = Bench(settings=settings(is_https=True)).browser().get("/sign-in").headers["Set-Cookie"]
    assert "Secure" in secure


def test_forged_cookie(bench: Bench) -> None:
    elsewhere = Bench(settings=settings(token="another-cluster")).browser()
    elsewhere.post("/sign-in", {"token": "another-cluster"})
    cookie = elsewhere.client.get_cookie("cerebro-7080", "127.0.0.1")
    assert cookie
    browser = bench.browser()
    browser.client.set_cookie("cerebro-7080", cookie.value, domain="127.0.0.1")
    assert browser.get("/experiments").status_code == 303


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
def test_sign_in_redirects_only_to_own_pages(target: str) -> None:
    assert local_path(target, "/experiments") == "/experiments"


def copied(bench: Bench, browser: Browser) -> Browser:
    """Copy a browser's cookie to a new browser at the dispatcher of `bench`."""
    cookie = browser.client.get_cookie("cerebro-7080", "127.0.0.1")
    assert cookie
    other = Browser(bench.app)
    other.client.set_cookie("cerebro-7080", cookie.value, domain="127.0.0.1")
    return other


def beside(bench: Bench) -> Bench:
    """Start a second dispatcher process that shares only the store."""
    return Bench(store=bench.store)


@pytest.mark.parametrize("path", ["/experiments", "/fragments/experiments", "/api/views/experiments"])
def test_signing_out_ends_copies_of_the_cookie(bench: Bench, path: str) -> None:
    """This process and later ones refuse the copies at once."""
    browser = bench.signed_in()
    copy, later = copied(bench, browser), copied(beside(bench), browser)
    assert copy.get(path).status_code == 200
    assert browser.post("/sign-out", {}, form="/experiments").status_code == 303
    assert copy.get(path).status_code in (303, 401)
    assert later.get(path).status_code in (303, 401)


def test_signing_out_ends_copies_at_other_processes(bench: Bench) -> None:
    """Their caches expire within 5 s, for pages and for polls."""
    browser, other = bench.signed_in(), beside(bench)
    copy = copied(other, browser)
    polled = copied(other, browser)
    assert copy.get("/experiments").status_code == polled.get("/fragments/experiments").status_code == 200
    browser.post("/sign-out", {}, form="/experiments")
    other.monotonic.now += FRESH_S
    assert copy.get("/experiments").status_code == 303
    other.monotonic.now += TRUSTED_S
    assert polled.get("/fragments/experiments").status_code == 303
    assert TRUSTED_S <= 5.0


def test_signing_out_ends_only_this_session(bench: Bench) -> None:
    """Other sessions of the same token stay valid."""
    one, two = bench.signed_in(), bench.signed_in()
    one.post("/sign-out", {}, form="/experiments")
    assert two.get("/experiments").status_code == 200
    one.post("/sign-in", {"token": TOKEN})
    assert one.get("/experiments").status_code == 200


def test_known_sessions_stay_valid_while_the_store_is_unavailable(bench: Bench) -> None:
    """Known sessions stay valid, unknown ones get 503, and a sign-out warns about other browsers."""
    browser = bench.signed_in()
    copy = copied(bench, browser)
    form = browser.get("/experiments").text
    bench.store.is_away = True
    bench.monotonic.now += 60
    assert browser.get("/start").status_code == 200
    unknown = copied(beside(bench), browser)
    assert unknown.get("/start").status_code == 503
    assert unknown.get("/sign-in").status_code == 200
    answer = browser.send("/sign-out", {"csrf": re.findall(r'name="csrf" value="([^"]+)"', form)[0]})
    assert (answer.status_code, "signed out in this browser" in answer.text) == (503, True)
    assert browser.get("/start").status_code == 303
    assert copy.get("/start").status_code == 303


def test_signing_out_deletes_the_tensorboard_cookie(bench: Bench) -> None:
    """The TensorBoard ticket is a cookie of the same host at another port."""
    answer = bench.signed_in().post("/sign-out", {}, form="/experiments")
    cookies = answer.headers.getlist("Set-Cookie")
    assert any(each.startswith("cerebro-tensorboard-6006=;") and "Max-Age=0" in each for each in cookies)
