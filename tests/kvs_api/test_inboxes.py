"""Inboxes keep unread items only, and removed workers leave none."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import redis

from cerebro.contract.records import WorkerUsage
from cerebro.contract.rest import api
from cerebro.runtime.kvs.client import KvsClient
from kvs_api.store import keys
from tests.kvs_api.bench import Bench, worker
from tests.kvs_api.real import Service
from tests.kvs_api.test_contract import pass_a_moment


@pytest.fixture
def bench(kvs: KvsClient) -> Bench:
    """A store with a worker."""
    bench = Bench(store=kvs, pass_a_moment=pass_a_moment)
    kvs.register(worker("a"))
    return bench


@pytest.fixture
def database(service: Service) -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(service.database.url)
    yield client
    client.close()


def assign(bench: Bench, count: int, first: int = 0) -> None:
    """Assign tasks to worker-0, each after the previous one failed."""
    for number in range(first, first + count):
        if number:
            bench.step("fail", task=f"etl-1/etl/train/p{number - 1}")
        assert bench.assign(task=f"etl-1/etl/train/p{number}") == "done"


def held(database: redis.Redis) -> int:
    """Count the entries of worker-0's inbox in the database."""
    found = database.xlen(keys.inbox("worker-0"))
    assert isinstance(found, int)
    return found


def test_read_items_are_removed(bench: Bench, database: redis.Redis) -> None:
    """The inbox of an active worker stays small, and a lost response can be read again."""
    cursor, read = 0, []
    for number in range(120):
        assign(bench, 1, number)
        found = bench.store.inbox("worker-0", "a", cursor, wait_s=0)
        assert bench.store.inbox("worker-0", "a", cursor, wait_s=0) == found
        read += [item.task for item in found]
        cursor = found[-1].seq
        assert held(database) <= 33
    assert read == [f"etl-1/etl/train/p{number}" for number in range(120)]


def test_unread_items_stay(bench: Bench, database: redis.Redis) -> None:
    """A read confirms the items of the previous read only."""
    assign(bench, 60)
    first = bench.store.inbox("worker-0", "a", 0, wait_s=0)
    assert (len(first), held(database)) == (60, 60)
    rest = bench.store.inbox("worker-0", "a", 40, wait_s=0)
    assert [item.seq for item in rest] == list(range(41, 61))
    assert held(database) == 20


def test_read_items_are_removed_after_the_database_was_emptied(bench: Bench, database: redis.Redis) -> None:
    """kvs_api caches no state of the previous database."""
    assign(bench, 40)
    bench.store.inbox("worker-0", "a", 0, wait_s=0)
    bench.store.inbox("worker-0", "a", 39, wait_s=0)
    database.flushall()
    again = Bench(store=bench.store, pass_a_moment=pass_a_moment)
    again.store.register(worker("a"))
    assign(again, 60)
    again.store.inbox("worker-0", "a", 40, wait_s=0)
    assert held(database) == 20


def test_a_removed_worker_leaves_no_inbox(bench: Bench, database: redis.Redis) -> None:
    """This holds even if its attempts are revoked later."""
    assign(bench, 40)
    cursor = bench.store.inbox("worker-0", "a", 0, wait_s=0)[-1].seq
    bench.store.inbox("worker-0", "a", cursor, wait_s=0)
    usage = WorkerUsage(cores=1)
    bench.store.report("worker-0", api.ReportRequest(incarnation="a", lease_s=1, usage=usage))
    bench.store.remove_worker("worker-0")
    step = api.Revoke(task="etl-1/etl/train/p39", attempt=1, worker="worker-0", reason="gone", force=True)
    assert bench.decide(step) == ["done"]
    bench.report()
    bench.store.inbox("worker-0", "a", cursor, wait_s=0)
    left = itertools.chain(database.scan_iter(f"{keys.worker('')}*"), database.smembers(keys.WORKERS))
    assert list(left) == []
