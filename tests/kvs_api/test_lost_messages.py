"""News without the messages that tell of them: refused by Redis, lost on the way, or not to be understood."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping

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
