"""No route answers and no form changes anything without the token."""

from __future__ import annotations

import pytest

from tests.dispatcher.access.surface import LOCAL, OPEN, changing, routes
from tests.dispatcher.fakes import Bench


def test_only_listed_routes_are_open(bench: Bench) -> None:
    """A new open route must be added here."""
    endpoints = {rule.endpoint for rule in bench.app.url_map.iter_rules()}
    assert endpoints >= OPEN
    open_ones = set()
    for method, path, endpoint in routes(bench):
        if bench.app.test_client().open(path, method=method, base_url=LOCAL).status_code != 401:
            open_ones.add(endpoint)
    assert open_ones == set()


def test_every_change_needs_the_form_token(bench: Bench) -> None:
    """With the session cookie alone, no command reaches the store."""
    browser = bench.signed_in()
    for path in changing(bench):
        bench.store.calls.clear()
        answer = browser.send(path, {"action": "stop_run", "run": "fit-1", "name": "digits"})
        assert answer.status_code in (400, 403), path
        assert not {"make_token", "revoke_token"} & set(bench.store.calls), path
        assert not {"append", "create_experiment", "put_archive", "restore"} & set(bench.store.calls), path
    assert browser.get("/experiments").status_code == 200


def test_every_page_redirects_signed_out_browsers_to_the_sign_in(bench: Bench) -> None:
    """API addresses answer 401 to browsers, too."""
    browser = bench.browser()
    for method, path, _ in routes(bench):
        if method != "GET":
            continue
        answer = browser.get(path)
        if path.startswith("/api/"):
            assert answer.status_code == 401, path
        else:
            assert answer.status_code == 303, path
            assert answer.headers["Location"].startswith("/sign-in?next="), path


def test_programs_without_the_token_get_401(bench: Bench) -> None:
    """This holds for unknown routes, too, and the store is not called."""
    for method, path, _ in [*routes(bench), ("GET", "/nowhere", ""), ("DELETE", "/start", "")]:
        answer = bench.app.test_client().open(path, method=method, base_url=LOCAL)
        assert answer.status_code == 401, (method, path)
        assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert bench.store.calls == []


def test_form_of_a_signed_out_browser_is_refused_with_a_link_back(bench: Bench) -> None:
    """A redirect would lose the form's content. The page says how to send it again."""
    answer = bench.browser().send("/start", {"name": "x"})
    assert answer.status_code == 401
    assert "Sign in in a new tab" in answer.text


@pytest.mark.parametrize("name", ["Digits", "a" * 51, "-a", "a%2F..%2Fb", "..", "a.b", "\u00e9", "a%00"])
def test_name_in_an_address_is_checked_before_it_reaches_the_store(bench: Bench, name: str) -> None:
    """The name becomes a part of a URL of the store."""
    browser = bench.signed_in()
    bench.store.calls.clear()
    assert browser.get(f"/experiments/{name}").status_code == 404
    assert bench.store.calls == []
