"""Readers get news even if Redis refuses, loses or garbles the messages."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import redis

from cerebro.contract.records import ExperimentRecord
from kvs_api.api.long_polls import LongPoll
from kvs_api.store import keys, news
from kvs_api.store.database import Entries
from kvs_api.store.news import News
from kvs_api.store.store import Store
from tests.kvs_api.bench import LOCATORS, requested
from tests.kvs_api.in_process import wait_for_news
from tests.kvs_api.real import Service
from tests.kvs_api.test_blocking_reads import Reader
from tests.waiting import HANG_S, until

KEY = "log:one"
ENOUGH_S = 300.0
"""The time at which a test ends, on the clock of `World`."""
NEVER_S = 1e6
"""A sweep interval so long that only messages wake readers."""


class EndOfTestError(Exception):
    """The clock of `World` has reached `ENOUGH_S`."""


class World:
    """A fake Redis with one message connection and a clock that moves only while it is waited on.

    Args:
        looks: results of the first sweeps over the streams; ``+`` is news. Later sweeps find nothing.
        answers: True if the connection carries anything after its confirmed subscription.
        refusal: error for each subscription.
    """

    def __init__(self, *, looks: str = "", answers: bool = True, refusal: Exception | None = None) -> None:
        self.now, self._answers, self._refusal = 0.0, answers, refusal
        self._looks = deque(looks)
        self._inbox: deque[dict[str, Any] | Exception] = deque()
        self.looked_at: list[float] = []
        self.is_open = False
        self.woken = 0

    def news(self) -> News:
        """Return `News` without its thread; tests call `_attend`. One reader waits, and waits again when woken."""
        client: Any = self
        news = News(client, client, clock=lambda: self.now)
        news._thread = threading.Thread()

        class Reader(LongPoll):
            until = None

            def __init__(self) -> None:
                """Skip the event loop."""

            def wake(self) -> None:
                world.woken += 1
                news.expect(self, {KEY: 0})

        world = self
        news.expect(Reader(), {KEY: 0})
        return news

    # --- the listener's connection ---------------------------------------------------------------

    def pubsub(self) -> World:
        self.is_open = True
        return self

    def subscribe(self, channel: str) -> None:
        assert channel == keys.NEWS
        self._inbox.append(self._refusal or {"type": "subscribe"})

    def ping(self, _: str) -> None:
        if self._answers:
            self._inbox.append({"type": "pong"})

    def send(self, key: str) -> None:
        """Publish a message."""
        self._inbox.append({"type": "message", "data": key.encode()})

    def get_message(self, timeout: float) -> dict[str, Any] | None:
        if not self._inbox:
            self.now += timeout
            if self.now > ENOUGH_S:
                raise EndOfTestError
            return None
        message = self._inbox.popleft()
        if isinstance(message, Exception):
            raise message
        return message

    def close(self) -> None:
        self.is_open = False

    # --- the reader ------------------------------------------------------------------------------

    def xread(self, streams: Mapping[str, str], count: int) -> dict[bytes, list[Any]]:
        assert (list(streams), count) == ([KEY], 1)
        self.looked_at.append(self.now)
        return {KEY.encode(): []} if self._looks and self._looks.popleft() == "+" else {}


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "kvs_api.store.news"]


def test_a_silent_connection_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    """This happens after the third unanswered sweep; repeated cases log one line."""
    world = World(answers=False)
    listening = world.news()
    for times in (1, 2):
        listening._attend()
        assert world.looked_at == [5.0, 10.0, 15.0, 20.0, 25.0, 30.0][: 3 * times]
        assert not world.is_open
    (line,) = lines(caplog)
    assert "is silent and is replaced" in line


def test_a_connection_that_misses_news_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    """The connection answers pings, but two sweeps found news without a message."""
    world = World(looks="+-+")
    world.news()._attend()
    assert world.looked_at == [5.0, 10.0, 15.0]
    (line,) = lines(caplog)
    assert "delivered no messages and is replaced" in line


def test_a_message_wakes_and_clears_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    """A message between two successful sweeps resets the count."""
    world = World(looks="+")
    listening = world.news()
    world.send(KEY)
    with pytest.raises(EndOfTestError):
        listening._attend()
    assert world.woken == 3, "confirmed, told, looked"
    assert lines(caplog) == []


def test_without_permission_for_messages_sweeps_continue(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After a minute of sweeps it subscribes again; one log line names the missing permission."""
    world = World(refusal=redis.exceptions.NoPermissionError("no channel"))
    listening = world.news()

    def pass_time(seconds: float) -> bool:
        world.now += seconds
        return False

    monkeypatch.setattr(listening._closed, "wait", pass_time)
    for _ in range(2):
        listening._attend()
    assert world.looked_at == [5.0 * look for look in range(1, 25)]
    (line,) = lines(caplog)
    assert f"&{keys.NEWS}" in line


# --- with Redis ------------------------------------------------------------------------------------


@pytest.fixture
def stores() -> Iterator[Callable[[str], Store]]:
    """Make stores with the experiment "one"."""
    opened: list[Store] = []

    def make(url: str) -> Store:
        opened.append(Store(url))
        opened[-1].create_experiment(ExperimentRecord(name="one", locators=LOCATORS))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


def listeners(client: redis.Redis) -> int:
    """Count the connections subscribed to the channel."""
    return int(client.pubsub_numsub(keys.NEWS)[0][1])


def write_next(store: Store, after: int) -> None:
    """Write the next event while a reader waits; return once the reader has it."""
    reader = Reader(lambda: wait_for_news(store, lambda: store.read_log("one", after, HANG_S)))
    until(lambda: store.waiting, "a reader waits")
    store.append("one", requested(f"etl-{after + 1}"))
    assert len(reader.result()) == 1


def test_a_database_user_without_channel_access_still_gets_events(
    service: Service,
    stores: Callable[[str], Store],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each write counts once. Readers depend on sweeps until the user gets the permission."""
    monkeypatch.setattr(news, "_SWEEP_S", 0.1)
    monkeypatch.setattr(news, "_REFUSED_S", 0.5)
    url = service.database.url
    with redis.Redis.from_url(url) as client:
        client.execute_command("ACL", "SETUSER", "limited", "on", ">secret", "~*", "+@all", "resetchannels")
        store = stores(url.replace("unix://", "unix://limited:secret@"))
        first = store.append("one", requested("etl-1"), once="a" * 32)
        assert store.append("one", requested("etl-1"), once="a" * 32) == first
        reads = itertools.count()
        read = store._read

        def counted(cursors: Mapping[str, int]) -> list[tuple[bytes, Entries]]:
            next(reads)
            return read(cursors)

        monkeypatch.setattr(store, "_read", counted)
        assert wait_for_news(store, lambda: store.read_log("one", 1, 0.3)) == []
        assert next(reads) <= 4
        write_next(store, 1)
        assert len(lines(caplog)) == 1
        before = listeners(client)
        client.execute_command("ACL", "SETUSER", "limited", f"&{keys.NEWS}")
        until(lambda: listeners(client) > before, "the store listens")


def test_an_invalid_message_stops_no_later_message(
    service: Service,
    stores: Callable[[str], Store],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A message that is no key is logged, and later messages work."""
    monkeypatch.setattr(news, "_SWEEP_S", NEVER_S)
    store = stores(service.database.url)
    write_next(store, 0)
    with redis.Redis.from_url(service.database.url) as client:
        until(lambda: listeners(client), "the store listens")
        client.publish(keys.NEWS, b"\xff")
    until(lambda: [each for each in caplog.records if each.exc_info], "the message is recorded")
    write_next(store, 1)
