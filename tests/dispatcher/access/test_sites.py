"""What another site makes a browser ask for is refused, though the session's cookie comes with it."""

from __future__ import annotations

import re

import pytest

from tests.dispatcher.access.surface import LOCAL, VIEW
from tests.dispatcher.fakes import Bench

OWN_SITE = {"Sec-Fetch-Site": "same-origin"}


@pytest.mark.parametrize("path", ["/start", "/sign-out"])
@pytest.mark.parametrize("token", ["", "guessed"])
def test_form_of_another_site_changes_nothing(bench: Bench, path: str, token: str) -> None:
    """The session's cookie alone is not enough: each form carries its token."""
    browser = bench.signed_in()
    answer = browser.send(path, {"csrf": token, "name": "x", "train_metadata": "/data/train.csv"})
    assert answer.status_code in (400, 403)
    assert "x" not in bench.store.records
    assert browser.get("/experiments").status_code == 200


def test_form_token_of_another_session_is_worth_nothing(bench: Bench) -> None:
    """Tokens are bound to the session that they were made for."""
    theirs = re.search(r'name="csrf" value="([^"]+)"', bench.signed_in().get("/start").text)
    assert theirs
    assert bench.signed_in().send("/sign-out", {"csrf": theirs[1]}).status_code == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_change_that_another_site_asks_for_is_refused(bench: Bench, site: str) -> None:
    """Whatever else comes with it, the form's token too: a browser says where a request comes from."""
    browser = bench.signed_in()
    token = re.search(r'name="csrf" value="([^"]+)"', browser.get("/start").text)
    assert token
    fields = {"csrf": token[1], "action": "stop_run", "run": "fit-1"}
    path = "/experiments/digits/actions"
    answer = browser.client.post(path, data=fields, headers={"Sec-Fetch-Site": site}, base_url=LOCAL)
    assert answer.status_code == 403
    assert "append" not in bench.store.calls
    assert browser.client.post(path, data=fields, headers=OWN_SITE, base_url=LOCAL).status_code == 303


def test_every_form_carries_a_token(bench: Bench) -> None:
    """Counted in the pages themselves."""
    browser = bench.signed_in()
    for path in ("/experiments", "/start", "/experiments/digits", "/experiments/digits/delete", "/cluster"):
        page = browser.get(path).text
        assert page.count('method="post"') == page.count('<input type="hidden" name="csrf"') >= 1, path


@pytest.mark.parametrize("site", ["same-origin", "none", None])
def test_scripts_of_the_page_read_with_the_session(bench: Bench, site: str | None) -> None:
    """Browsers say where a request comes from; an old one that says nothing is believed."""
    headers = {"Sec-Fetch-Site": site} if site else {}
    answer = bench.signed_in().client.get(VIEW, headers=headers, base_url=LOCAL)
    assert answer.status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_other_sites_read_nothing_with_it(bench: Bench, site: str) -> None:
    """Neither do those on the same domain."""
    answer = bench.signed_in().client.get(VIEW, headers={"Sec-Fetch-Site": site}, base_url=LOCAL)
    assert answer.status_code == 403
