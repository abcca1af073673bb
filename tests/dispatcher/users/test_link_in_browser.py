"""A sign-in link on a cluster with users, in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cerebro.client.connection import sign_in_link
from cerebro.contract.accounts.identity import Role
from tests.dispatcher.serving import serving
from tests.dispatcher.users.signed import Signed
from tests.e2e.browser import DESKTOP, PHONE, SCHEMES, Complaints, mistakes, settle, window

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow


def test_the_page_asks_before_a_link_signs_in(browser: Browser, place: Signed, tmp_path: Path) -> None:
    """In every look, by keyboard, without the code in an address; Cancel leads to the form."""
    kvs, seen = place.client(place.person("Ada Lovelace", Role.MEMBER)), Complaints()
    with serving(place.app) as at:
        for size in (DESKTOP, PHONE):
            for scheme in SCHEMES:
                with window(browser, size, scheme) as context:
                    page = seen.listen(context.new_page())
                    page.goto(sign_in_link(kvs, at, "/cluster"))
                    button = page.get_by_role("button", name="Sign in as Ada Lovelace")
                    button.wait_for()
                    settle(page)
                    assert mistakes(page, f"/sign-in/{scheme}", tmp_path) == []
                    assert "#" not in page.url
                    page.get_by_role("link", name="Cancel").click()
                    page.get_by_label("Your token").wait_for()
                    page.goto(sign_in_link(kvs, at, "/cluster"))
                    button.wait_for()
                    page.keyboard.press("Enter")
                    page.wait_for_url(f"{at}/cluster")
                    page.get_by_role("button", name="Sign out").wait_for()
    assert seen == []
    kvs.close()
