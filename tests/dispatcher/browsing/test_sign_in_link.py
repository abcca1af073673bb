"""A link with a one-time code in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from cerebro.client.connection import sign_in_link
from cerebro.runtime.kvs.client import KvsClient
from dispatcher.app import create_app
from tests.dispatcher.fakes import settings
from tests.dispatcher.serving import serving
from tests.kvs_api.real import TOKEN, Service

if TYPE_CHECKING:
    from playwright.sync_api import Page, Request

pytestmark = pytest.mark.slow


@pytest.fixture
def at(service: Service, kvs: KvsClient) -> Iterator[str]:
    """The address of a page over a real store."""
    with ExitStack() as stack:
        yield stack.enter_context(serving(create_app(settings(server=service.address, token=TOKEN), kvs)))


def test_a_link_signs_in_and_leaves_no_trace(page: Page, at: str, kvs: KvsClient) -> None:
    """Neither an address of a request, nor `Referer`, nor the address bar, nor the history has the code."""
    requests: list[Request] = []

    def record(request: Request) -> None:
        requests.append(request)

    page.on("request", record)
    link = sign_in_link(kvs, at, "/cluster")
    code = link.partition("#")[2]
    page.goto(link)
    page.wait_for_url(f"{at}/cluster")
    page.get_by_role("button", name="Sign out").wait_for()
    for each in requests:
        assert code not in each.url.partition("#")[0]
        assert code not in each.headers.get("referer", "")
    page.go_back()
    assert code not in page.url
    sent = [each for each in requests if code in (each.post_data or "")]
    assert [each.method for each in sent] == ["POST"]


def test_a_used_link_says_so_and_a_new_one_in_the_same_tab_works(page: Page, at: str, kvs: KvsClient) -> None:
    """The second address differs only in its fragment, so the browser does not load the page again."""
    used, fresh = sign_in_link(kvs, at), sign_in_link(kvs, at)
    kvs.redeem_sign_in_code(used.partition("#")[2])
    page.goto(used)
    page.get_by_role("alert").filter(has_text="was used already").wait_for()
    assert page.url == f"{at}/sign-in"
    page.goto(fresh)
    page.wait_for_url(f"{at}/experiments")


def test_a_signed_in_browser_ignores_the_code(page: Page, at: str, kvs: KvsClient) -> None:
    """It shows the page, without the code in its address, and the code stays valid."""
    page.goto(sign_in_link(kvs, at))
    page.wait_for_url(f"{at}/experiments")
    link = sign_in_link(kvs, at, "/cluster")
    page.goto(link)
    page.wait_for_url(f"{at}/cluster#main")
    kvs.redeem_sign_in_code(link.partition("#")[2])
