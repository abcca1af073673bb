"""Signing in and out."""

from __future__ import annotations

import pytest

from cerebro.contract.accounts.identity import warning_of
from dispatcher.access.sign_in_limit import IN_ALL, PER_ADDRESS, WINDOW_S, SignInLimiter
from tests.dispatcher.fakes import TOKEN, Bench
from tests.dispatcher.stories import running_story


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.store.add(running_story())
    return bench


def test_sign_in_redirects_to_the_requested_page(bench: Bench) -> None:
    browser = bench.browser()
    expected = browser.get("/experiments/digits").headers["Location"]
    assert 'value="/experiments/digits"' in browser.get(expected).text
    answer = browser.post("/sign-in", {"token": f" {TOKEN}\n", "next": "/experiments/digits"}, form=expected)
    assert answer.status_code == 303
    assert answer.headers["Location"] == "/experiments/digits"
    assert browser.get("/experiments/digits").status_code == 200


@pytest.mark.parametrize("token", ["", "guessed", TOKEN[:-1], TOKEN + "x", "\u00e9"])
def test_wrong_token(bench: Bench, token: str) -> None:
    """The answer does not repeat the token."""
    browser = bench.browser()
    answer = browser.post("/sign-in", {"token": token})
    assert answer.status_code == 401
    assert "not the cluster" in answer.text
    assert not token or token not in answer.text
    assert browser.get("/experiments").status_code == 303


def test_an_unavailable_store_is_not_reported_as_a_wrong_token(bench: Bench) -> None:
    """The dispatcher checks the token itself; the next page reports the store's outage."""
    bench.store.is_away = True
    browser = bench.browser()
    assert browser.post("/sign-in", {"token": TOKEN}).status_code == 303
    assert "The store does not answer" in browser.get("/start").text
    assert "since <time" in browser.get("/start").text
    assert browser.get("/experiments").status_code == 503


def test_guessing_is_slowed_down(bench: Bench) -> None:
    """The sixth wrong token within a minute gets 429 and a wait of 60 s."""
    browser = bench.browser()
    for _ in range(5):
        assert browser.post("/sign-in", {"token": "no"}).status_code == 401
    answer = browser.post("/sign-in", {"token": "no"})
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "60")
    assert "wait 60 s" in answer.text
    bench.monotonic.now += 60.5
    assert browser.post("/sign-in", {"token": "no"}).status_code == 401


@pytest.mark.parametrize("path", ["/sign-in", "/api/v1/queue", "/api/views/experiments", "/experiments"])
def test_wrong_tokens_of_others_do_not_lock_users_out(bench: Bench, path: str) -> None:
    """Behind a proxy all clients share one address, so the right token is always accepted."""
    client, right = bench.app.test_client(), {"Authorization": f"Bearer {TOKEN}"}
    for _ in range(2 * IN_ALL):
        if path == "/sign-in":
            bench.browser().post(path, {"token": "no"})
        else:
            client.get(path, headers={"Authorization": "Bearer no"}, base_url="http://127.0.0.1:7080")
    assert bench.browser().post("/sign-in", {"token": TOKEN}).status_code == 303
    assert client.get("/experiments", headers=right, base_url="http://127.0.0.1:7080").status_code == 200


def test_wrong_tokens_are_counted_per_address_and_in_total() -> None:
    """Wrong tokens during a wait are not counted, so the wait never exceeds a minute."""
    now = 0.0
    limiter = SignInLimiter(lambda: now)
    assert [limiter.failed("here") for _ in range(PER_ADDRESS + 20)] == [0.0] * PER_ADDRESS + [WINDOW_S] * 20
    assert limiter.failed("elsewhere") == 0
    now = WINDOW_S
    assert limiter.failed("here") == 0
    many = SignInLimiter(lambda: 0.0)
    waits = [many.failed(f"address-{number}") for number in range(IN_ALL + 1)]
    assert waits == [0.0] * IN_ALL + [WINDOW_S]


@pytest.mark.parametrize(("token", "is_short"), [("t", True), ("x" * 19, True), ("x" * 20, False)])
def test_a_short_token_causes_a_warning(token: str, is_short: bool) -> None:
    """The warning depends on the token's length and never shows the token."""
    found = warning_of(token)
    assert bool(found) == is_short
    assert token not in found or len(token) < 2


def test_an_expired_sign_in_form_is_shown_again(bench: Bench) -> None:
    """Without a valid form token the form is shown again instead of a bare error."""
    answer = bench.browser().send("/sign-in", {"token": TOKEN})
    assert answer.status_code == 400
    assert "send the form again" in answer.text


def test_a_large_body_is_refused_before_signing_in(bench: Bench) -> None:
    """Only signed-in users may upload, and only on the start page."""
    assert bench.browser().send("/sign-in", {"token": "x" * 200_000}).status_code == 413
