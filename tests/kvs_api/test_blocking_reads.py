"""Blocking reads of logs, live points, inboxes, and the controller's watch."""

from __future__ import annotations

import threading
from typing import Any

from cerebro.contract.rest.api import MAX_WAIT_S
from cerebro.runtime.kvs.client import KvsClient
from tests.kvs_api.bench import TASK, Bench, requested, worker
from tests.kvs_api.real import Replica, Service
from tests.waiting import join, until


class Reader(threading.Thread):
    """A blocking read in a thread."""

    def __init__(self, read: Any) -> None:
        super().__init__(daemon=True)
        self._read, self.answer = read, None
        self.start()

    def run(self) -> None:
        self.answer = self._read()

    def result(self) -> Any:
        """Wait for the read and return its result."""
        join(self, "whose read blocks")
        return self.answer


def wait_until_blocked(service: Service | Replica, readers: int = 1) -> None:
    """Wait until this number of readers is blocked."""
    until(lambda: service.waiting >= readers, f"{readers} readers wait")


def test_a_blocking_read_returns_when_an_event_arrives(kvs: KvsClient, service: Service) -> None:
    """Covers the log, live points, the inbox and the watch, each long before its timeout."""
    bench = Bench(store=kvs, pass_a_moment=lambda: None)
    kvs.register(worker("a"))
    seq = kvs.watch({}, 0, 0).cluster

    reader = Reader(lambda: kvs.events("one", 0, wait_s=MAX_WAIT_S))
    wait_until_blocked(service)
    kvs.append("one", requested("etl-1"))
    assert [event.type for event in reader.result()] == ["RunRequested"]

    reader = Reader(lambda: kvs.watch({"one": 1}, seq + 1, MAX_WAIT_S))
    wait_until_blocked(service)
    kvs.append("one", requested("etl-2"))
    answer = reader.result()
    assert [event.seq for event in answer.events.get("one", ())] in ([2], [])
    assert answer.events or answer.cluster == seq + 2

    reader = Reader(lambda: kvs.inbox("worker-0", "a", 0, wait_s=MAX_WAIT_S))
    wait_until_blocked(service)
    bench.assign()
    assert [item.task for item in reader.result()] == [TASK]

    reader = Reader(lambda: kvs.watch({}, kvs.watch({}, 0, 0).cluster, MAX_WAIT_S))
    wait_until_blocked(service)
    kvs.register(worker("a", "worker-1"))
    assert reader.result().events == {}


def test_a_replaced_worker_reads_no_item_of_its_successor(kvs: KvsClient, service: Service) -> None:
    bench = Bench(store=kvs, pass_a_moment=lambda: None)
    kvs.register(worker("a"))
    reader = Reader(lambda: kvs.inbox("worker-0", "a", 0, wait_s=MAX_WAIT_S))
    wait_until_blocked(service)
    kvs.register(worker("b"))
    bench.assign(incarnation="b")
    assert reader.result() == ()
    assert bench.inbox("b") == [(TASK, 1, False)]
