"""More blocked readers than threads need no threads and all get the news."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
import redis

from cerebro.contract.records import ExperimentRecord
from cerebro.runtime.kvs.client import KvsClient
from kvs_api.store import keys, news
from tests.kvs_api.bench import LOCATORS, requested
from tests.kvs_api.real import TOKEN, Replica, Service
from tests.kvs_api.test_blocking_reads import Reader, wait_until_blocked
from tests.waiting import HANG_S

READERS = 60
LIMIT_S = HANG_S
_PATH = "/v1/experiments/one/events?after=0&wait_s=25"
READ = f"GET {_PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()


@contextmanager
def readers(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Open connections that each wait for an experiment's first event."""
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            each = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S))
            each.sendall(READ)
            found.append(each)
        yield found


def answer(reader: socket.socket) -> bytes:
    """Read one response, with headers and body."""
    received = b""
    while b"\r\n\r\n" not in received or len(received.partition(b"\r\n\r\n")[2]) < _length(received):
        piece = reader.recv(1 << 16)
        assert piece, received
        received += piece
    return received


def _length(told: bytes) -> int:
    return int(told.partition(b"content-length: ")[2].split(b"\r\n", 1)[0])


def test_one_thread_serves_any_number_of_readers(replica: Replica) -> None:
    """With 60 readers and one thread other requests are answered, and an event reaches all readers."""
    replica.start(CEREBRO_THREADS="1")
    client = replica.client()
    client.create_experiment(ExperimentRecord(name="one", locators=LOCATORS))
    with readers(replica.port, READERS) as waiting:
        wait_until_blocked(replica, READERS)
        client.health()
        assert client.lead("holder", ttl_s=10.0).term
        assert replica.waiting == READERS
        client.append("one", requested("etl-1"))
        assert all(b"RunRequested" in answer(each) for each in waiting)
    assert replica.waiting == 0


def test_all_readers_are_answered_at_the_end(replica: Replica) -> None:
    """Each gets an empty response, long before its timeout."""
    process = replica.start(CEREBRO_THREADS="2")
    replica.client().create_experiment(ExperimentRecord(name="one", locators=LOCATORS))
    with readers(replica.port, READERS) as waiting:
        wait_until_blocked(replica, READERS)
        process.send_signal(signal.SIGTERM)
        assert all(b'{"events":[]' in answer(each) for each in waiting)
    assert process.wait(LIMIT_S) == 0


def test_a_slow_reader_delays_no_other_reader(replica: Replica) -> None:
    """One reader does not read its response and another has closed its connection."""
    replica.start(CEREBRO_THREADS="1")
    client = replica.client()
    client.create_experiment(ExperimentRecord(name="one", locators=LOCATORS))
    with readers(replica.port, 3) as (slow, left, prompt):
        wait_until_blocked(replica, 3)
        left.close()
        client.append("one", requested("etl-1"))
        assert b"RunRequested" in answer(prompt)
        client.health()
        assert b"RunRequested" in answer(slow)


def test_blocked_readers_get_503_when_the_database_fails(replica: Replica) -> None:
    """They get 503 within seconds, and continue once the database is back."""
    replica.start()
    client = replica.client()
    client.create_experiment(ExperimentRecord(name="one", locators=LOCATORS))
    with readers(replica.port, 2) as waiting:
        wait_until_blocked(replica, 2)
        replica.database.kill()
        assert all(b"503 " in answer(each) for each in waiting)
    replica.database.start()
    reader = Reader(lambda: client.events("one", wait_s=25.0))
    client.append("one", requested("etl-1"))
    assert [event.type for event in reader.result()] == ["RunRequested"]


@pytest.mark.slow
def test_unpublished_events_are_found(
    kvs: KvsClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost message only delays readers."""
    monkeypatch.setattr(news, "_SWEEP_S", 0.1)
    kvs.create_experiment(ExperimentRecord(name="one", locators=LOCATORS))
    reader = Reader(lambda: kvs.events("one", 0, wait_s=25))
    wait_until_blocked(service)
    with redis.Redis.from_url(service.database.url) as client:
        event = requested("etl-1").model_dump_json(exclude={"seq", "time"})
        client.xadd(keys.log("one"), {"t": 1, "e": event}, id="1-0")
    assert [event.type for event in reader.result()] == ["RunRequested"]
