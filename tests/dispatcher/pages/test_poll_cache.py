"""Cached polls bypass Flask but keep its answers, counters and access checks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest
from werkzeug.test import Client, TestResponse

from dispatcher.pages import poll_cache as repeats
from dispatcher.pages.poll_cache import TRUSTED_S
from tests.dispatcher.fakes import TOKEN, Bench
from tests.dispatcher.stories import running_story, status

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

PAGE, VIEW = "/fragments/experiments/digits", "/api/views/experiments/digits"
OURS = {"Authorization": f"Bearer {TOKEN}"}


class CountingBench(Bench):
    """Count the requests that reach the application."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.num_requests = 0
        self.store.add(running_story())
        self.store.statuses = [status("worker-0")]
        around, flask = self.app.wsgi_app, self.app.wsgi_app._app  # type: ignore[attr-defined]

        def counting(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            self.num_requests += 1
            answered: Iterable[bytes] = flask(environ, start_response)
            return answered

        around._app = counting  # type: ignore[attr-defined]

    def get(self, path: str, tag: str = "", **changed: str) -> TestResponse:
        """Poll as the page's script does."""
        headers = OURS | ({"If-None-Match": tag} if tag else {}) | changed
        return Client(self.app).get(path, headers=headers)

    def later(self, seconds: float) -> None:
        self.clock.now += seconds
        self.monotonic.now += seconds


def headers(response: TestResponse) -> dict[str, str]:
    """Return the headers that are the same in every answer."""
    return {name: value for name, value in response.headers if name != "X-Request-Id"}


@pytest.fixture
def bench() -> CountingBench:
    return CountingBench()


@pytest.mark.parametrize("path", [PAGE, VIEW, "/fragments/experiments", "/fragments/experiments/digits/logs"])
@pytest.mark.parametrize("packing", ["gzip", "identity"])
def test_the_second_poll_gets_the_same_answer(bench: CountingBench, path: str, packing: str) -> None:
    for _ in range(3):  # the list of experiments loads in the background
        first = bench.get(path, **{"Accept-Encoding": packing})
    bench.num_requests = 0
    second = bench.get(path, **{"Accept-Encoding": packing})
    assert bench.num_requests == 0
    assert (second.status, second.data) == (first.status, first.data)
    assert headers(second) == headers(first)
    assert second.headers["X-Request-Id"] != first.headers["X-Request-Id"]


def test_an_unchanged_poll_gets_304_with_the_same_headers(bench: CountingBench) -> None:
    tag = bench.get(PAGE).headers["ETag"]
    short = bench.get(PAGE, tag)
    assert bench.num_requests == 1
    bench.later(TRUSTED_S + 0.1)
    full = bench.get(PAGE, bench.get(PAGE, tag).headers["ETag"])
    assert (short.status_code, short.data) == (304, b"")
    assert headers(short).keys() == headers(full).keys()


def test_changed_pages_are_built_once_for_all_viewers(bench: CountingBench) -> None:
    tag = bench.get(PAGE).headers["ETag"]
    story = running_story()
    story.pause("the checkpoint volume is full")
    bench.store.add(story)
    bench.later(1)
    news = bench.get(PAGE, tag)
    assert bench.num_requests == 2
    assert news.status_code == 200
    assert "the checkpoint volume is full" in news.text
    assert bench.get(PAGE, tag).data == news.data
    assert bench.num_requests == 2


@pytest.mark.parametrize(
    "other",
    [
        {"Authorization": "Bearer wrong"},
        {"Authorization": ""},
        {"Authorization": "", "Cookie": "cerebro-7080=made-up"},
        {"Host": "evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
    ids=str,
)
def test_requests_that_differ_reach_the_application(bench: CountingBench, other: dict[str, str]) -> None:
    bench.get(PAGE)
    bench.get(PAGE, **other)
    assert bench.num_requests == 2


def test_refusals_are_not_cached(bench: CountingBench) -> None:
    for count in (1, 2):
        assert bench.get(PAGE, Authorization="Bearer wrong").status_code == 401
        assert bench.num_requests == count
    for count in (3, 4):
        assert bench.get("/fragments/experiments/nothing").status_code == 404
        assert bench.num_requests == count


def test_cached_permissions_expire(bench: CountingBench) -> None:
    bench.get(PAGE)
    bench.later(TRUSTED_S + 0.1)
    bench.get(PAGE)
    assert bench.num_requests == 2


def test_polls_of_sessions_are_cached_and_count_as_viewers(bench: CountingBench) -> None:
    browser = bench.signed_in()
    browser.get(PAGE)
    before, bench.num_requests = bench.app.extensions["cerebro-metrics"].exposition().decode(), 0
    bench.later(1)
    assert browser.get(PAGE).status_code == 200
    after = bench.app.extensions["cerebro-metrics"].exposition().decode()
    line = 'cerebro_dispatcher_requests_total{method="GET",route="pages.experiment_fragment",status="2xx"} '
    assert bench.num_requests == 0
    assert float(after.split(line)[1].split()[0]) == float(before.split(line)[1].split()[0]) + 1
    assert "cerebro_dispatcher_viewers 1.0" in after


def test_a_deleted_experiment_is_404_despite_the_cache(bench: CountingBench) -> None:
    bench.get(PAGE)
    bench.store.records.clear()
    bench.later(10)
    assert bench.get(PAGE).status_code == 404


def test_the_poll_cache_is_bounded(bench: CountingBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "_MAX_POLLS", 3)
    for number in range(5):
        bench.get(f"{PAGE}?n={number}")
    bench.get(f"{PAGE}?n=4")
    assert bench.num_requests == 5
    bench.get(f"{PAGE}?n=0")
    assert bench.num_requests == 6
    bench.get(PAGE, **{"X-Long": "x" * 5000})
    bench.get(PAGE, **{"X-Long": "x" * 5000})
    assert bench.num_requests == 8
