"""Requests that another site triggers are refused, although the session cookie is sent."""

from __future__ import annotations

import re

import pytest

from tests.dispatcher.access.surface import LOCAL, VIEW
from tests.dispatcher.fakes import Bench

OWN_SITE = {"Sec-Fetch-Site": "same-origin"}


@pytest.mark.parametrize("path", ["/start", "/sign-out"])
@pytest.mark.parametrize("token", ["", "guessed"])
def test_form_of_another_site_changes_nothing(bench: Bench, path: str, token: str) -> None:
    """Each form carries a form token."""
    browser = bench.signed_in()
    answer = browser.send(path, {"csrf": token, "name": "x", "train_metadata": "/data/train.csv"})
    assert answer.status_code in (400, 403)
    assert "x" not in bench.store.records
    assert browser.get("/experiments").status_code == 200


def test_a_form_token_of_another_session_is_refused(bench: Bench) -> None:
    """A form token is bound to one session."""
    theirs = re.search(r'name="csrf" value="([^"]+)"', bench.signed_in().get("/start").text)
    assert theirs
    assert bench.signed_in().send("/sign-out", {"csrf": theirs[1]}).status_code == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_change_from_another_site_is_refused(bench: Bench, site: str) -> None:
    """Fetch metadata names the other site, so even a valid form token does not help."""
    browser = bench.signed_in()
    token = re.search(r'name="csrf" value="([^"]+)"', browser.get("/start").text)
    assert token
    fields = {"csrf": token[1], "action": "stop_run", "run": "fit-1"}
    path = "/experiments/digits/actions"
    answer = browser.client.post(path, data=fields, headers={"Sec-Fetch-Site": site}, base_url=LOCAL)
    assert answer.status_code == 403
    assert "append" not in bench.store.calls
    assert browser.client.post(path, data=fields, headers=OWN_SITE, base_url=LOCAL).status_code == 303


def test_every_form_has_a_token(bench: Bench) -> None:
    """The test counts the forms and the tokens in every page."""
    browser = bench.signed_in()
    for path in ("/experiments", "/start", "/experiments/digits", "/experiments/digits/delete", "/cluster"):
        page = browser.get(path).text
        assert page.count('method="post"') == page.count('<input type="hidden" name="csrf"') >= 1, path


@pytest.mark.parametrize("site", ["same-origin", "none", None])
def test_scripts_of_the_page_may_read_with_the_session(bench: Bench, site: str | None) -> None:
    """Browsers without fetch metadata are accepted."""
    headers = {"Sec-Fetch-Site": site} if site else {}
    answer = bench.signed_in().client.get(VIEW, headers=headers, base_url=LOCAL)
    assert answer.status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_other_sites_cannot_read_with_the_session(bench: Bench, site: str) -> None:
    """Sites of the same domain are refused, too."""
    answer = bench.signed_in().client.get(VIEW, headers={"Sec-Fetch-Site": site}, base_url=LOCAL)
    assert answer.status_code == 403
