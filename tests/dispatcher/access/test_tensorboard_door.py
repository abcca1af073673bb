"""The dispatcher issues tickets for TensorBoard, and TensorBoard checks them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest

from cerebro.local.tensorboard import guarded
from cerebro.runtime.web import tickets
from dispatcher.settings import Links
from tests.dispatcher.fakes import TOKEN, Bench, settings
from tests.dispatcher.serving import serving
from tests.e2e.browser import chromium, window


def test_a_signed_in_user_gets_a_tensorboard_ticket() -> None:
    """The ticket is valid for the linked address; without a session the dispatcher issues none."""
    bench = Bench()
    content = bench.signed_in().get("/tensorboard").text
    (ticket,) = set(re.findall(r"http://127\.0\.0\.1:6006/\?ticket=([0-9a-f.]+)", content))
    key = tickets.key_of(TOKEN)
    assert tickets.holds(key, tickets.Kind.TICKET, ticket, bench.clock())
    assert bench.browser().get("/tensorboard").headers["Location"] == "/sign-in?next=/tensorboard"
    assert bench.app.test_client().get("/tensorboard", base_url="http://127.0.0.1").status_code == 401


def test_the_filter_is_kept_on_the_way_through_the_sign_in() -> None:
    """From TensorBoard to the page that issues tickets, and back."""
    key, began = tickets.key_of(TOKEN), 1_800_000_000.0
    app = guarded(_TensorBoard.answer, key=key, page="http://127.0.0.1:7080", clock=lambda: began)

    def location(query: str) -> str:
        environ = {"HTTP_HOST": "127.0.0.1:6006", "HTTP_ACCEPT": "text/html", "REQUEST_METHOD": "GET"}
        headers: dict[str, str] = {}
        list(app(environ | {"PATH_INFO": "/", "QUERY_STRING": query}, lambda _, found: headers.update(found)))
        return headers["Location"]

    door = location("runFilter=%5Edigits%2F")
    assert door == "http://127.0.0.1:7080/tensorboard?runFilter=%5Edigits%2F"
    content = Bench().signed_in().get(door.removeprefix("http://127.0.0.1:7080")).text
    (onward,) = re.findall(r'"button" href="http://127\.0\.0\.1:6006/\?(.*)#timeseries"', content)
    assert onward.startswith("runFilter=%5Edigits%2F&amp;ticket=")
    ticket = tickets.issue(key, tickets.Kind.TICKET, began)
    assert location(f"runFilter=%5Edigits%2F&ticket={ticket}") == "/?runFilter=%5Edigits%2F"
    assert location(f"ticket={ticket}") == "/"


class _TensorBoard:
    """An app that answers every request. Its guard gets the dispatcher's address later."""

    guard: Any = None

    def __call__(self, environ: Any, start: Any) -> Iterable[bytes]:
        found: Iterable[bytes] = self.guard(environ, start)
        return found

    @staticmethod
    def answer(environ: Any, start: Any) -> Iterable[bytes]:
        start("200 OK", [("Content-Type", "text/html")])
        return [b"<title>All runs</title>"]


@pytest.mark.slow
@pytest.mark.processes
def test_the_printed_address_leads_through_the_sign_in_to_tensorboard() -> None:
    """A second visit needs no sign-in."""
    board = _TensorBoard()
    with serving(board) as address:  # type: ignore[arg-type]
        bench = Bench(settings=settings(links=Links(tensorboard=address)))
        with serving(bench.app) as page, chromium() as browser, window(browser) as context:
            board.guard = guarded(board.answer, key=tickets.key_of(TOKEN), page=page, clock=bench.clock)
            tab = context.new_page()
            tab.goto(f"{address}/?runFilter=digits#timeseries")
            tab.get_by_label("Token of the cluster").fill(TOKEN)
            tab.get_by_role("button", name="Sign in").click()
            tab.wait_for_url(f"{address}/?runFilter=digits#timeseries")
            assert tab.title() == "All runs"
            tab.goto(f"{address}/data/runs")
            assert tab.title() == "All runs"
