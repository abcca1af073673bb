"""Clients wait while Redis or kvs_api is down or hung, and acknowledged writes survive."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import redis
import urllib3

from cerebro.contract.events import DeletionRequested, RunStopRequested
from cerebro.contract.rest import api
from cerebro.errors import ConflictError, NotFoundError, StoreUnavailableError
from cerebro.runtime.kvs.client import KvsClient
from tests.kvs_api.bench import FINISHED, PAUSED, Bench, note, requested, started
from tests.kvs_api.real import TOKEN, Database, Service
from tests.waiting import HANG_S, until


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """A database for this test only, because the test kills it."""
    with Database(tmp_path) as database:
        yield database


@pytest.fixture
def own_service(database: Database) -> Iterator[Service]:
    with Service(database) as service:
        yield service


@pytest.mark.processes
def test_an_unavailable_database_is_503(own_service: Service, database: Database) -> None:
    """All kinds of routes, including health, respond with a `Problem`."""
    database.kill()
    with urllib3.PoolManager(retries=False) as http:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        for path in ("/v1/queue", "/v1/experiments", "/v1/workers", "/v1/experiments/one/events?wait_s=5"):
            answer = http.request("GET", own_service.address + path, headers=headers)
            assert (answer.status, api.Problem.model_validate_json(answer.data).error) == (
                503,
                "StoreUnavailableError",
            )
        body = api.LeaderRequest(holder="me", ttl_s=1).model_dump_json()
        assert (
            http.request("POST", own_service.address + "/v1/leader", body=body, headers=headers).status == 503
        )
        health = http.request("GET", own_service.address + "/health")
        assert (health.status, api.Health.model_validate_json(health.data).status) == (
            503,
            "store-unavailable",
        )


@pytest.mark.processes
def test_a_call_is_retried_for_a_limited_time(own_service: Service, database: Database) -> None:
    """After `retry_for_s` the client raises a retryable error."""
    database.kill()
    client = own_service.client(retry_for_s=0.2)
    with pytest.raises(StoreUnavailableError, match="cerebro status"):
        client.queue()


@pytest.mark.processes
def test_a_client_waits_for_the_store(own_service: Service, database: Database) -> None:
    bench = Bench(store=own_service.client(), pass_a_moment=lambda: None)
    database.kill()
    answers: list[int] = []
    caller = threading.Thread(
        target=lambda: answers.append(bench.store.append("one", requested("etl-1"))), daemon=True
    )
    caller.start()
    assert not answers
    database.start()
    caller.join(HANG_S)
    assert answers == [1]


@pytest.mark.processes
def test_a_read_that_blocks_outlives_a_restart_of_the_store(own_service: Service, database: Database) -> None:
    bench = Bench(store=own_service.client(), pass_a_moment=lambda: None)
    found: list[list[str]] = []
    reader = threading.Thread(
        target=lambda: found.append([e.type for e in bench.store.events("one", 0, wait_s=15)]), daemon=True
    )
    reader.start()
    database.kill()
    database.start()
    bench.store.append("one", requested("etl-1"))
    reader.join(HANG_S)
    assert found == [["RunRequested"]]


@pytest.mark.processes
def test_killing_the_store_loses_nothing_acknowledged(own_service: Service, database: Database) -> None:
    """Redis is killed three times while four clients write; each acknowledged run exists once and is queued."""
    bench = Bench(store=own_service.client(), pass_a_moment=lambda: None)
    acknowledged: dict[str, int] = {}
    enough = threading.Event()

    def write(number: int) -> None:
        client = own_service.client()
        for count in range(400):
            run = f"etl-{number}-{count}"
            acknowledged[run] = client.append("one", requested(run))
            if enough.is_set():
                return

    def has_written(count: int) -> bool:
        return len(acknowledged) >= count

    writers = [threading.Thread(target=write, args=(number,), daemon=True) for number in range(4)]
    for writer in writers:
        writer.start()
    for target in (20, 60, 100):
        until(partial(has_written, target), f"{target} acknowledged writes")
        database.kill()
        database.start()
    enough.set()
    for writer in writers:
        writer.join(HANG_S)
        assert not writer.is_alive()

    log = bench.log()
    assert [event.seq for event in log] == list(range(1, len(log) + 1))
    assert {getattr(event, "run", ""): event.seq for event in log} == acknowledged
    assert len(bench.store.queue()) == len(log)


@pytest.mark.processes
def test_killing_the_store_keeps_leases_and_inboxes(own_service: Service, database: Database) -> None:
    bench = Bench(store=own_service.client(), pass_a_moment=lambda: None)
    bench.run_until("running")
    before = (bench.log(), bench.inbox(), bench.store.workers()[0].record)
    database.kill()
    database.start()
    assert (bench.log(), bench.inbox(), bench.store.workers()[0].record) == before
    assert bench.revoke() == "refused"
    assert bench.step("commit") == "done"
    assert bench.step("commit") == "already"
    assert bench.store.lead("controller-1", 1).term == 0


class Deaf:
    """A proxy that drops the first `count` responses, as if the service was killed after the write."""

    def __init__(self, service: Service, count: int) -> None:
        self._service, self.swallow = service, count
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, socket.create_connection(("127.0.0.1", self._service.port)) as server:
                server.sendall(_one_message(client))
                answer = _one_message(server)
                if self.swallow:
                    self.swallow -= 1
                else:
                    client.sendall(answer)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._thread.join()
        self._listener.close()


def _one_message(source: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += source.recv(1 << 16)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        (
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        ),
        0,
    )
    while len(body) < length:
        body += source.recv(1 << 16)
    return head.replace(b"keep-alive", b"close") + b"\r\n\r\n" + body


def test_a_call_whose_answer_is_lost_counts_once(service: Service) -> None:
    """Every kind of call can be repeated after the service died between write and response."""
    proxy = Deaf(service, 0)
    client = KvsClient(proxy.address, TOKEN, retry_for_s=20)
    bench = Bench(store=client, pass_a_moment=lambda: None)

    def losing_an_answer(call: object) -> object:
        proxy.swallow = 1
        answer = call() if callable(call) else None
        assert proxy.swallow == 0
        return answer

    assert losing_an_answer(lambda: client.append("one", requested("etl-1"))) == 1
    assert losing_an_answer(lambda: client.append("one", RunStopRequested(run="etl-1"))) == 2
    assert losing_an_answer(lambda: bench.decide(note(PAUSED), after=2)) == ["already"]
    losing_an_answer(lambda: bench.run_until("assigned"))
    assert losing_an_answer(lambda: bench.step("start")) == "already"
    assert losing_an_answer(lambda: bench.step("commit")) == "already"
    assert bench.types() == [
        "RunRequested",
        "RunStopRequested",
        "RunPaused",
        "TaskAssigned",
        "TaskStarted",
        "TaskCommitted",
    ]
    bench.decide(note(FINISHED))
    assert losing_an_answer(lambda: client.append("one", DeletionRequested(by="ann"))) == 8
    with pytest.raises(NotFoundError):
        losing_an_answer(lambda: client.delete_experiment("one", bench.term))
    assert len(client.audit()) == 1
    proxy.close()


@pytest.mark.processes
def test_pending_deletions_survive_a_kill_of_the_store(own_service: Service, database: Database) -> None:
    """Commands, lists and the audit entry are durable; the deletion continues after a restart."""
    bench = Bench(store=own_service.client(), pass_a_moment=lambda: None)
    bench.decide(note(started()))
    bench.store.append("one", DeletionRequested(by="ann"))
    database.kill()
    database.start()
    assert bench.store.deleting() == ("one",)
    bench.store.delete_experiment("one", bench.term)
    database.kill()
    database.start()
    assert (bench.store.deleting(), bench.store.reclaim().datasets) == ((), ("d",))
    assert [entry.by for entry in bench.store.audit()] == ["ann"]
    with redis.Redis.from_url(database.url) as client:
        assert not [key for key in client.scan_iter("*exp:one*") if b":calls:" not in key]


def test_the_error_explains_a_stopped_local_cluster() -> None:
    """A local cluster that was stopped explains it; otherwise the error has the address and the last problem."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"  # the port is free after this block
    for explanation, message in (
        ("it was stopped: `cerebro up`", "^it was stopped: `cerebro up`$"),
        ("", "did not answer"),
    ):
        client = KvsClient(address, TOKEN, retry_for_s=0.0, explain_absence=partial(str, explanation))
        with pytest.raises(StoreUnavailableError, match=message):
            client.queue()
        client.close()


def test_another_schema_version_is_refused() -> None:
    body = api.Health(status="ok", schema_version=99, version="9").model_dump_json().encode()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(1 << 16)
                client.sendall(
                    b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body
                )

        threading.Thread(target=answer, daemon=True).start()
        client = KvsClient(f"http://127.0.0.1:{listener.getsockname()[1]}", TOKEN, retry_for_s=1)
        with pytest.raises(ConflictError, match="schema 99"):
            client.health()
        client.close()
