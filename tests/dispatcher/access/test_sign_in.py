"""Signing in and out."""

from __future__ import annotations

import pytest

from dispatcher.access.sign_in_limit import IN_ALL, PER_ADDRESS, SignInLimiter
from tests.dispatcher.fakes import TOKEN, Bench
from tests.dispatcher.stories import running_story


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.store.add(running_story())
    return bench


def test_token_opens_the_page_that_was_wanted(bench: Bench) -> None:
    """The address asked for survives the sign-in."""
    browser = bench.browser()
    wanted = browser.get("/experiments/digits").headers["Location"]
    assert 'value="/experiments/digits"' in browser.get(wanted).text
    answer = browser.post("/sign-in", {"token": f" {TOKEN}\n", "next": "/experiments/digits"}, form=wanted)
    assert answer.status_code == 303
    assert answer.headers["Location"] == "/experiments/digits"
    assert browser.get("/experiments/digits").status_code == 200


def test_foreign_target_is_ignored(bench: Bench) -> None:
    """No open redirect."""
    answer = bench.browser().post("/sign-in", {"token": TOKEN, "next": "//evil.example/"})
    assert answer.headers["Location"] == "/experiments"


@pytest.mark.parametrize("token", ["", "guessed", TOKEN[:-1], TOKEN + "x", "\u00e9"])
def test_wrong_token(bench: Bench, token: str) -> None:
    """It is called wrong, not shown again, and opens nothing."""
    browser = bench.browser()
    answer = browser.post("/sign-in", {"token": token})
    assert answer.status_code == 401
    assert "not the cluster" in answer.text
    assert not token or token not in answer.text
    assert browser.get("/experiments").status_code == 303


def test_store_that_is_away_is_not_called_a_wrong_token(bench: Bench) -> None:
    """The token is checked here; the next page says that the store does not answer, and since when."""
    bench.store.is_away = True
    browser = bench.browser()
    assert browser.post("/sign-in", {"token": TOKEN}).status_code == 303
    assert "The store does not answer" in browser.get("/start").text
    assert "since <time" in browser.get("/start").text
    assert browser.get("/experiments").status_code == 503


def test_guessing_is_slowed_down(bench: Bench) -> None:
    """After five wrong tokens the right one has to wait a minute, and is told so."""
    browser = bench.browser()
    for _ in range(5):
        assert browser.post("/sign-in", {"token": "no"}).status_code == 401
    answer = browser.post("/sign-in", {"token": TOKEN})
    assert answer.status_code == 429
    assert answer.headers["Retry-After"] == "60"
    bench.monotonic.now += 60.5
    assert browser.post("/sign-in", {"token": TOKEN}).status_code == 303


def test_a_right_token_forgives_its_own_address_only() -> None:
    """Behind a proxy everybody has the same one: the bound on all attempts is not lifted by who knows the token."""
    limiter = SignInLimiter(lambda: 0.0)
    for number in range(IN_ALL):
        limiter.failed(f"address-{number % 50}")
    limiter.succeeded("address-1")
    assert limiter.wait_s("elsewhere") > 0
    one = SignInLimiter(lambda: 0.0)
    for _ in range(PER_ADDRESS):
        one.failed("here")
    one.succeeded("here")
    assert one.wait_s("here") == 0


def test_page_left_open_is_sent_again(bench: Bench) -> None:
    """A form without a valid token is shown again instead of a bare error."""
    answer = bench.browser().send("/sign-in", {"token": TOKEN})
    assert answer.status_code == 400
    assert "send it again" in answer.text


def test_large_body_is_not_taken_before_signing_in(bench: Bench) -> None:
    """Only the start page takes uploads, and only from those who signed in."""
    assert bench.browser().send("/sign-in", {"token": "x" * 200_000}).status_code == 413


def test_signing_out(bench: Bench) -> None:
    """The cookie is gone."""
    browser = bench.signed_in()
    assert browser.post("/sign-out", {}, form="/experiments").status_code == 303
    assert browser.get("/experiments").status_code == 303


def test_signed_in_people_skip_the_form(bench: Bench) -> None:
    """A bookmark of the sign-in leads on."""
    assert bench.signed_in().get("/sign-in?next=/start").headers["Location"] == "/start"
