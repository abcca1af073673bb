"""More readers than threads: what must not wait does not, and every reader still gets the news."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from cerebro.contract.records import ExperimentRecord
from cerebro.runtime.kvs import KvsClient
from kvs_api.long_poll_slots import LongPollSlots, most_waiting
from kvs_api.store import Store
from tests.kvs_api.bench import LOCATORS, requested
from tests.kvs_api.real import Replica, Service

THREADS, READERS = 8, 20
PROMPT_S = 1.0


@pytest.mark.parametrize(
    ("threads", "most"), [(1, 1), (2, 1), (8, 4), (31, 16), (33, 17), (64, 48), (300, 284)]
)
def test_sixteen_threads_or_half_of_them_are_for_others(threads: int, most: int) -> None:
    """Whichever leaves more slots to readers."""
    assert most_waiting(threads) == most


def test_places_are_given_back() -> None:
    """Also after an error; nobody gets one that is taken, and a queue that is full does not wait."""
    slots = LongPollSlots(2)
    with suppress(ValueError), slots.slot(0.0) as is_held:
        assert is_held
        raise ValueError
    with slots.slot(0.0) as first, slots.slot(60.0) as second:
        assert (first, second) == (True, False)
    with slots.slot(0.0) as is_held:
        assert is_held


def test_a_reader_without_a_place_is_answered_soon_with_what_is_there(
    kvs: KvsClient, service: Service
) -> None:
    """Within about a second of twenty: nothing while there is nothing, and news at once."""
    kvs.create_experiment(ExperimentRecord(name="one", locators=LOCATORS))
    store = Store(service.database.url, threads=4)
    with store._slots.slot(0.0), store._slots.slot(0.0):
        began = time.monotonic()
        assert store.read_log("one", 0, 20.0) == []
        assert 0.5 < time.monotonic() - began < 5.0


def longest(ask: Callable[[], object], times: int) -> float:
    """Seconds that the slowest of so many requests took."""
    taken = []
    for _ in range(times):
        began = time.monotonic()
        ask()
        taken.append(time.monotonic() - began)
    return max(taken)


def test_readers_never_hold_all_threads(replica: Replica) -> None:
    """20 of them at 8 threads: probes and leases are answered within a second, and news reach all readers."""
    replica.start(CEREBRO_THREADS=str(THREADS))
    client = replica.client()
    client.create_experiment(ExperimentRecord(name="one", locators=LOCATORS))
    asking, told = threading.Semaphore(0), threading.Semaphore(0)

    def read() -> None:
        reader = replica.client()
        asking.release()
        while not reader.events("one", wait_s=20.0):
            asking.release()
        told.release()

    readers = [threading.Thread(target=read, daemon=True) for _ in range(READERS)]
    for reader in readers:
        reader.start()
    for _ in range(2 * READERS):
        # Every reader asks, and some of them for the second time: there was no place for these.
        assert asking.acquire(timeout=30.0)
    assert longest(client.health, 20) < PROMPT_S
    assert longest(lambda: client.lead("holder", ttl_s=10.0), 20) < PROMPT_S
    client.append("one", requested("etl-1"))
    for _ in readers:
        assert told.acquire(timeout=5.0)
