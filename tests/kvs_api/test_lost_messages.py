"""News without the messages that tell of them: refused by Redis, lost on the way, or not to be understood."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Self

import pytest
import redis

from cerebro.contract.records import ExperimentRecord
from kvs_api import keys, news
from kvs_api.database import Entries
from kvs_api.store import Store
from tests.kvs_api.bench import LOCATORS, requested
from tests.kvs_api.real import Service
from tests.kvs_api.test_blocking_reads import Reader

LIMIT_S = 20.0


class Network:
    """A TCP port in front of a store. It may forget the connections that messages come by: nothing goes through them
    any more, and nobody is told. A context: at its end it is closed."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._held: list[socket.socket] = []
        self._listening: set[int] = set()
        self._lost: set[int] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._listener, *self._held):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def forget(self) -> None:
        """Those that there are now, not those to come."""
        self._lost |= self._listening

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, far = self._listener.accept()[0], socket.socket(socket.AF_UNIX)
                far.connect(self._store)
                self._held += [near, far]
                number = len(self._held)
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(*pair, number), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, number: int) -> None:
        with suppress(OSError):
            while piece := source.recv(1 << 16):
                if b"SUBSCRIBE" in piece:
                    self._listening.add(number)
                if number not in self._lost:
                    sink.sendall(piece)
            sink.shutdown(socket.SHUT_RDWR)


def until(holds: Callable[[], object]) -> None:
    """Wait until it does."""
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


def listeners(client: redis.Redis) -> int:
    """Connections that messages are sent to."""
    return int(client.pubsub_numsub(keys.NEWS)[0][1])


@pytest.fixture
def limited(service: Service) -> str:
    """The URL of a user that may do all with keys, and has no channel."""
    with redis.Redis.from_url(service.database.url) as client:
        client.execute_command("ACL", "SETUSER", "limited", "on", ">secret", "~*", "+@all", "resetchannels")
    return service.database.url.replace("unix://", "unix://limited:secret@")


def test_a_user_without_the_channel_writes_and_gets_its_news(
    limited: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is written is written once, with its mark. Readers wait, and do not ask again and again; one line tells of
    the right that is missing; with it messages come."""
    monkeypatch.setattr(news, "_SWEEP_S", 0.3)
    monkeypatch.setattr(news, "_REFUSED_S", 0.9)
    store = Store(limited)
    store.create_experiment(ExperimentRecord(name="one", locators=LOCATORS))
    first = store.append("one", requested("etl-1"), once="a" * 32)
    assert store.append("one", requested("etl-1"), once="a" * 32) == first
    reads = itertools.count()
    read = store._read

    def counted(cursors: Mapping[str, int]) -> list[tuple[bytes, Entries]]:
        next(reads)
        return read(cursors)

    monkeypatch.setattr(store, "_read", counted)
    assert store.read_log("one", 1, 2.0) == []
    assert next(reads) <= 4
    reader = Reader(lambda: store.read_log("one", 1, 20.0))
    until(lambda: store.waiting)
    store.append("one", requested("etl-2"))
    assert len(reader.result()) == 1
    (line,) = [each.getMessage() for each in caplog.records if each.name == "kvs_api.news"]
    assert f"&{keys.NEWS}" in line
    with redis.Redis.from_url(limited.replace("limited:secret@", "")) as client:
        before = listeners(client)
        client.execute_command("ACL", "SETUSER", "limited", f"&{keys.NEWS}")
        until(lambda: listeners(client) > before)


def told_of(store: Store, after: int) -> float:
    """Seconds after which a reader that waits is told of the next event."""
    reader = Reader(lambda: store.read_log("one", after, LIMIT_S))
    until(lambda: store.waiting)
    began = time.monotonic()
    store.append("one", requested(f"etl-{after + 1}"))
    assert len(reader.result()) == 1
    return time.monotonic() - began


@pytest.mark.parametrize("by", ["silence", "news"])
def test_a_connection_that_the_network_has_forgotten_is_replaced(
    by: str, service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether it is found by its silence, or by news that it did not tell of; messages come again then, long before the
    next look."""
    monkeypatch.setattr(news, "_SWEEP_S", 0.3)
    monkeypatch.setattr(news, "_SILENT_S", 0.5 if by == "silence" else LIMIT_S)
    with Network(service.database.url.removeprefix("unix://")) as network:
        store = Store(network.url)
        store.create_experiment(ExperimentRecord(name="one", locators=LOCATORS))
        told_of(store, 0)
        network.forget()
        seqs = itertools.count(1)
        if by == "news":
            for seq in itertools.islice(seqs, 2):
                told_of(store, seq)
        until(lambda: [each for each in caplog.records if "there will be another one" in each.getMessage()])
        monkeypatch.setattr(news, "_SWEEP_S", LIMIT_S)
        told_of(store, next(seqs))
        assert told_of(store, next(seqs)) < LIMIT_S / 4


def test_what_cannot_be_understood_stops_no_news(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A message that is no key: it is recorded, and others are told of as before."""
    store = Store(service.database.url)
    store.create_experiment(ExperimentRecord(name="one", locators=LOCATORS))
    told_of(store, 0)
    monkeypatch.setattr(news, "_SWEEP_S", LIMIT_S)
    with redis.Redis.from_url(service.database.url) as client:
        client.publish(keys.NEWS, b"\xff")
    until(lambda: [each for each in caplog.records if each.exc_info])
    assert told_of(store, 1) < LIMIT_S / 2
