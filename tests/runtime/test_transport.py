"""The client retries after proxy responses and after a single kvs_api failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
import urllib3

from cerebro.contract.events import RunStopRequested
from cerebro.contract.rest import api
from cerebro.contract.stored.registry import Registration
from cerebro.errors import ServerError, StoreUnavailableError
from cerebro.runtime.kvs.client import KvsClient

HTML = {"Content-Type": "text/html; charset=utf-8"}
JSON = {"Content-Type": "application/json"}
LEADS = b'{"term": 3, "holder": "c"}'
PAGE = b"<html>Please sign in</html>"


Answer = tuple[int, dict[str, str], bytes]


class Answers:
    """A service with a scripted list of responses; it repeats the last one."""

    def __init__(self, *answers: Answer) -> None:
        self.answers, self.num_requests = list(answers), 0

    def request(self, *_: object, **__: object) -> urllib3.HTTPResponse:
        status, headers, body = self.answers[min(self.num_requests, len(self.answers) - 1)]
        self.num_requests += 1
        return urllib3.HTTPResponse(body=body, status=status, headers=headers, preload_content=True)


Made = Callable[..., tuple[KvsClient, Answers]]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Made:
    """Make a client of such a service."""

    def client_with(*answers: Answer, retry_for_s: float = 60.0) -> tuple[KvsClient, Answers]:
        service, kvs = Answers(*answers), KvsClient("http://store", "t", retry_for_s=retry_for_s)
        monkeypatch.setattr(kvs, "_http", service)
        service.headers = {}  # type: ignore[attr-defined] # as a pool has them
        monkeypatch.setattr("cerebro.runtime.kvs.transport.time.sleep", lambda s: None)
        return kvs, service

    return client_with


@pytest.mark.parametrize(
    "bad",
    [
        (500, JSON, b'{"error": "ServerError", "message": "boom"}'),
        (500, HTML, PAGE),
        (200, HTML, PAGE),
        (200, {}, b"\n<!DOCTYPE HTML><p>Please sign in"),
        (200, JSON, PAGE),
        (502, HTML, PAGE),
    ],
    ids=["500", "500 of a proxy", "200 of a proxy", "page without a type", "page of a wrong type", "502"],
)
def test_a_request_with_one_bad_answer_is_repeated(client: Made, bad: Answer) -> None:
    """Agent, controller, dispatcher and clients all call the store through this code."""
    kvs, service = client(bad, (200, JSON, LEADS))
    assert kvs.lead("c", 5.0) == api.LeaderAnswer(term=3, holder="c")
    assert service.num_requests == 2


@pytest.mark.parametrize("bad", [(503, JSON, b"{}"), (500, HTML, PAGE), (200, HTML, PAGE)])
def test_a_service_with_lasting_bad_answers_counts_as_unavailable(client: Made, bad: Answer) -> None:
    """The message names the responder; callers retry as for an unavailable store."""
    kvs, _ = client(bad, retry_for_s=0.0)
    with pytest.raises(StoreUnavailableError, match=f"HTTP {bad[0]}"):
        kvs.lead("c", 5.0)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error": "ServerError", "message": "POST /leader: boom"}', "POST /leader: boom"),
        (b'{"error": "BadRequestError", "message": "boom"}', "boom"),
        (b'{"error": "AnotherVersionsError", "message": "boom"}', "boom"),
        (b"{}", "HTTP 500"),
        (b"", "HTTP 500"),
    ],
)
def test_a_lasting_error_is_raised_after_three_tries(client: Made, body: bytes, said: str) -> None:
    """The request itself may cause the error. It is retryable, so agents and controllers continue."""
    kvs, service = client((500, JSON, body), retry_for_s=600.0)
    with pytest.raises(ServerError, match=said):
        kvs.lead("c", 5.0)
    assert service.num_requests == 3


CALLS: dict[str, Callable[[KvsClient], object]] = {
    "lead": lambda kvs: kvs.lead("c", 5.0),
    "append": lambda kvs: kvs.append("one", RunStopRequested(run="fit-1")),
    "events": lambda kvs: kvs.events("one"),
    "watch": lambda kvs: kvs.watch({"one": 0}, 0, 0.0),
    "decide": lambda kvs: kvs.decide("one", api.DecideRequest(term=1, after=0, steps=())),
    "cluster_log": lambda kvs: kvs.cluster_log(),
    "write_cluster_log": lambda kvs: kvs.write_cluster_log(api.ClusterLogRequest(term=1, after=0, events=())),
    "keep_snapshot": lambda kvs: kvs.keep_snapshot("one", 1, "1", 1, b""),
    "register_model": lambda kvs: kvs.register_model(
        "m", cast(Registration, api.Problem(error="", message=""))
    ),
    "whoami": lambda kvs: kvs.whoami(),
    "tokens": lambda kvs: kvs.tokens(),
    "pod_problems": lambda kvs: kvs.worker_set_status(),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("body", [PAGE, b"Please sign in", b""])
def test_an_answer_of_another_server_is_a_retryable_error(client: Made, call: str, body: bytes) -> None:
    """A proxy may send any body with any content type, or with none."""
    kvs, _ = client((200, {}, body), retry_for_s=0.0)
    with pytest.raises(StoreUnavailableError, match="proxy"):
        CALLS[call](kvs)
