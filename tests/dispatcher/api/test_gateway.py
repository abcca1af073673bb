"""The gateway forwards the part of the store's API that clients need, and nothing else."""

from __future__ import annotations

import hashlib
import itertools
import socket
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import pytest

from cerebro import errors
from cerebro.contract.events import RunRequested
from cerebro.contract.records import CodeRecord, ExperimentRecord, SizeRequest
from cerebro.contract.rest.api import MAX_WAIT_S
from cerebro.contract.runs import EtlRequest
from cerebro.runtime.kvs.client import KvsClient
from dispatcher.api.gateway import FORWARDED
from tests.dispatcher.api.gateways import Served, served
from tests.kvs_api.bench import LOCATORS
from tests.kvs_api.real import TOKEN
from tests.waiting import HANG_S

__all__ = ["served"]

SHA = hashlib.sha256(b"code").hexdigest()
RECORD = ExperimentRecord(name="one", locators=LOCATORS)
REQUEST = EtlRequest(code=SHA, code_fingerprint=SHA, seed=0, fraction=1.0, max_failed=0.0)


def test_every_client_call_works_as_at_the_store(served: Served, kvs: KvsClient) -> None:
    """Writes through the gateway are visible in the store and vice versa; errors keep their types."""
    outside = served.client()
    assert outside.create_experiment(RECORD) == kvs.experiment("one") == outside.experiment("one")
    assert [found.experiment.name for found in outside.experiments()] == ["one"]
    code = CodeRecord(sha256=SHA, fingerprint=SHA, class_name="S", source="", encoded="code")
    assert outside.put_code(code) == kvs.code(SHA) == outside.code(SHA)
    content = bytes(range(256)) * 4000
    sha256 = hashlib.sha256(content).hexdigest()
    outside.put_archive(sha256, content)
    assert outside.archive(sha256) == content
    assert outside.append("one", RunRequested(run="etl-1", request=REQUEST)) == 1
    assert outside.events("one") == kvs.events("one")
    assert outside.live("one") == ()
    assert outside.queue() == kvs.queue()
    assert outside.workers() == kvs.workers()
    assert outside.watch({"one": 0}, 0, 1.0).events["one"] == kvs.events("one")
    outside.request_size(SizeRequest(workers=3))
    assert outside.size_request() == kvs.size_request() == SizeRequest(workers=3)
    outside.withdraw_size_request(3)
    assert outside.size_request() is None
    assert outside.worker_set_status() == kvs.worker_set_status()
    with pytest.raises(errors.NotFoundError, match="two"):
        outside.experiment("two")
    with pytest.raises(errors.ConflictError, match="another code archive"):
        outside.create_experiment(RECORD.model_copy(update={"archive": SHA}))
    with pytest.raises(errors.BadRequestError):
        outside.events("one", after=-1)


def test_a_blocking_read_returns_on_a_new_event(served: Served) -> None:
    """The read returns well before its timeout."""
    outside = served.client()
    outside.create_experiment(RECORD)
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(lambda: outside.events("one", wait_s=20.0))
        served.client().append("one", RunRequested(run="etl-1", request=REQUEST))
        assert [event.type for event in reading.result(HANG_S)] == ["RunRequested"]


def test_blocking_reads_do_not_block_pages(served: Served) -> None:
    """Reads above the limit get a retry answer, and a page still opens."""
    served.client().create_experiment(RECORD)
    path = "/api/v1/experiments/one/events?after=0&wait_s="
    with ThreadPoolExecutor(12) as pool:
        waiting = [pool.submit(lambda: served.ask("GET", f"{path}{MAX_WAIT_S:g}").status) for _ in range(12)]
        refused = itertools.islice(as_completed(waiting, HANG_S), 8)
        assert [future.result() for future in refused] == [503] * 8
        assert served.ask("GET", "/experiments").status == 200
        served.client().append("one", RunRequested(run="etl-1", request=REQUEST))
        assert sorted(future.result(HANG_S) for future in waiting) == [200] * 4 + [503] * 8
    assert served.ask("GET", f"{path}0.1").status == 200


def filled(path: str) -> str:
    return "/api" + path.format(name="one", sha256=SHA, token="0" * 16)


@pytest.mark.parametrize("headers", [
    {}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}, {"Accept": "text/html"},
], ids=["none", "wrong", "basic", "browser"])  # fmt: skip
def test_requests_without_the_token_are_refused(served: Served, headers: dict[str, str]) -> None:
    """Unknown routes answer 401 as JSON, too, also to browsers."""
    for key in (*FORWARDED, "GET /volumes/shared/x", "POST /v1/leader", "GET /nowhere"):
        method, path = key.split(" ")
        served_anew = served.ask(method, filled(path), headers=headers, body=b"{}")
        assert served_anew.status in ({401, 429} if "Authorization" in headers else {401}), key
        assert served_anew.headers["Content-Type"] == "application/json"


def test_a_session_cookie_is_refused(served: Served) -> None:
    """Another site can make a browser send its cookie, but not the token."""
    page = served.ask("GET", "/sign-in", headers={"Accept": "text/html"})
    token = page.data.decode().split('name="csrf" value="')[1].split('"')[0]
    cookie = page.headers["Set-Cookie"].split(";")[0]
    form = {"Cookie": cookie, "Content-Type": "application/x-www-form-urlencoded"}
    answer = served.ask("POST", "/sign-in", headers=form, body=f"csrf={token}&token={TOKEN}".encode())
    assert answer.status == 303
    session = {"Cookie": answer.headers["Set-Cookie"].split(";")[0]}
    assert served.ask("GET", "/experiments", headers=session).status == 200
    assert served.ask("GET", "/api/v1/experiments", headers=session).status == 401
    assert "Set-Cookie" not in served.ask("GET", "/api/v1/experiments").headers


def test_wrong_tokens_do_not_lock_out_the_right_token(served: Served) -> None:
    """Behind a proxy all callers share one address, so the right token is never delayed."""
    found = [
        served.ask("GET", "/api/v1/queue", headers={"Authorization": "Bearer no"}).status for _ in range(7)
    ]
    assert found == [401] * 5 + [429] * 2
    assert served.ask("GET", "/api/v1/queue").status == 200


@pytest.mark.parametrize(("method", "path"), [
    ("POST", "/v1/leader"), ("POST", "/v1/experiments/one/decisions"), ("PUT", "/v1/workers/worker-0"),
    ("DELETE", "/v1/workers/worker-0"), ("POST", "/v1/workers/worker-0/reports"),
    ("GET", "/v1/workers/worker-0/inbox"), ("PUT", "/v1/cluster/worker-set"),
    ("DELETE", "/v1/experiments/one"), ("POST", "/v1/experiments"), ("GET", ""), ("GET", "/v1/code/.."),
    ("GET", "/v1/experiments/%2e%2e/events"), ("GET", "/v1/experiments/..%2fworkers"),
    ("GET", "/v1/experiments/one%3fafter=1"), ("POST", "/v1/experiments/../leader"), ("POST", "//v1/leader"),
    ("PUT", "/volumes/shared/x"), ("DELETE", "/volumes/shared/x"), ("POST", "/volumes/shared/x"),
])  # fmt: skip
def test_routes_for_services_are_not_forwarded(served: Served, method: str, path: str) -> None:
    """Routes for services are refused even with the right token."""
    assert served.ask(method, f"/api{path}", body=b"{}").status in (404, 405)


def test_an_unavailable_store_gives_the_error_of_the_store(tmp_path: Path) -> None:
    """Clients retry as they do inside the cluster."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        served = Served(f"http://127.0.0.1:{nobody.getsockname()[1]}", tmp_path)
        answer = served.ask("GET", "/api/v1/queue")
        served.close()
    assert answer.status == 503
    assert answer.json()["error"] == "StoreUnavailableError"


class Hasty:
    """A store that closes the connection in the middle of an answer."""

    def __init__(self, sent: int) -> None:
        self._sent = sent
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def _answer(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n" + b"{" * self._sent)

    def close(self) -> None:
        """Stop listening."""
        self._listener.shutdown(socket.SHUT_RDWR)  # Wakes `accept`.
        self._thread.join()
        self._listener.close()


@pytest.mark.parametrize(("sent", "problem"), [(0, "HTTP 503"), (1, "HTTP 503"), (200_000, "IncompleteRead")])
def test_a_truncated_answer_is_not_passed_on_as_complete(sent: int, problem: str, tmp_path: Path) -> None:
    """The gateway answers 503 if it has sent nothing yet; otherwise it closes the connection early."""
    hasty = Hasty(sent)
    served = Served(hasty.address, tmp_path)
    try:
        client = KvsClient(f"{served.address}/api", TOKEN, retry_for_s=0.0)
        with pytest.raises(errors.StoreUnavailableError, match=problem):
            client.queue()
    finally:
        served.close()
        hasty.close()


class Slow:
    """A store that holds requests until the test releases them with a status."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._held: list[socket.socket] = []
        self.heard = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.recv(1 << 16)
            self._held.append(connection)
            self.heard.release()

    def answer(self, status: str) -> None:
        """Answer all waiting requests."""
        for connection in self._held:
            with connection:
                connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\n{{}}".encode())
        self._held.clear()

    def close(self) -> None:
        """Stop listening."""
        self._listener.shutdown(socket.SHUT_RDWR)  # Wakes `accept`.
        self._thread.join()
        self._listener.close()


def test_a_slow_store_does_not_block_pages(tmp_path: Path) -> None:
    """A slow store blocks threads, so such reads are limited, too. Their slots are released afterwards."""
    slow = Slow()
    served = Served(slow.address, tmp_path)
    try:
        for _ in range(2):
            with ThreadPoolExecutor(9) as pool:
                asking = [pool.submit(lambda: served.ask("GET", "/api/v1/queue").status) for _ in range(9)]
                for _ in range(5):
                    assert slow.heard.acquire(timeout=HANG_S)
                at_once = [future.result() for future in itertools.islice(as_completed(asking, 20), 4)]
                assert at_once == [503] * 4
                assert served.ask("GET", "/sign-in", headers={}).status == 200
                slow.answer("200 OK")
                assert sorted(future.result(HANG_S) for future in asking) == [200] * 5 + [503] * 4
    finally:
        slow.answer("200 OK")
        served.close()
        slow.close()


def test_a_refused_dispatcher_token_is_not_blamed_on_the_caller(tmp_path: Path) -> None:
    """A caller with the cluster's token must not see a 401 of the dispatcher's own token."""
    slow = Slow()
    served = Served(slow.address, tmp_path)
    try:
        with ThreadPoolExecutor() as pool:
            asking = pool.submit(lambda: served.ask("GET", "/api/v1/queue"))
            assert slow.heard.acquire(timeout=HANG_S)
            slow.answer("401 Unauthorized")
            answer = asking.result(HANG_S)
        assert answer.status == 503
        assert "the store refuses the dispatcher's token" in answer.json()["message"]
    finally:
        served.close()
        slow.close()
