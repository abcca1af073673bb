"""Size requests, workers that never return, and workers that do not start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

import controller.scaling.membership as membership_module
from cerebro.contract.records import PodRef, SizeRequest, WorkerRecord
from cerebro.errors import ClusterError, StoreUnavailableError
from cerebro.runtime.kvs.client import KvsClient
from controller.scaling.membership import Membership
from controller.scaling.orchestrator import Fleet, Memory, Pod
from research.simulation.store import VirtualStore
from tests.clocks import set_monotonic


@dataclass
class Manager:
    """A cluster manager that obeys, or raises its `error`."""

    pods: Fleet | None = None
    sizes: list[int] = field(default_factory=list)
    error: Exception | None = None

    def fleet(self) -> Fleet | None:
        return self.pods

    def scale(self, workers: int) -> None:
        if self.error:
            raise self.error
        self.sizes.append(workers)

    def resize(self, pod: str, container: str, memory: Memory) -> None:
        """Fail: these tests request no resize."""
        raise NotImplementedError


@pytest.fixture
def store() -> VirtualStore:
    """A store with the rules of the real one."""
    return VirtualStore(lambda: 0.0)


def membership(store: VirtualStore, manager: Manager | None) -> Membership:
    """Return a membership that checks at each call."""
    # The simulation's store has all methods used here, with the same meaning.
    return Membership(cast(KvsClient, store), manager, lease_s=10.0, tick_s=0.0)


def record(number: int, **fields: Any) -> WorkerRecord:
    """A worker in its pod."""
    pod = PodRef(name=f"w-{number}", uid=f"uid-{number}", container="worker")
    worker_record = WorkerRecord(
        worker=f"w-{number}", incarnation="a", weight=1.0, cores=1, kinds=("train",), pod=pod
    )
    return worker_record.model_copy(update=fields)


def fleet(*numbers: int, size: int, **fields: Any) -> Fleet:
    """A fleet with these pods and this requested size."""
    return Fleet(pods={f"w-{n}": Pod(uid=f"uid-{n}", **fields) for n in numbers}, size=size)


def test_a_size_request_is_forwarded_once(store: VirtualStore) -> None:
    """It is done when the cluster manager has accepted it."""
    manager = Manager()
    store.request_size(SizeRequest(workers=5))
    for _ in range(3):
        membership(store, manager).reconcile()
    assert manager.sizes == [5]
    assert store.size_request() is None


def test_a_refused_size_request_keeps_its_reason(store: VirtualStore) -> None:
    """The controller does not retry it."""
    manager = Manager(error=ClusterError("the quota is 4 nodes"))
    store.request_size(SizeRequest(workers=5))
    membership(store, manager).reconcile()
    manager.error = None
    membership(store, manager).reconcile()
    assert store.size_request() == SizeRequest(workers=5, problem="the quota is 4 nodes")
    assert manager.sizes == []


def test_a_size_request_waits_for_an_unavailable_cluster_manager(store: VirtualStore) -> None:
    """The request stays pending."""
    manager = Manager(error=StoreUnavailableError("no answer"))
    store.request_size(SizeRequest(workers=5))
    membership(store, manager).reconcile()
    assert store.size_request() == SizeRequest(workers=5)
    manager.error = None
    membership(store, manager).reconcile()
    assert manager.sizes == [5]


def test_a_size_request_without_cluster_manager_is_refused(store: VirtualStore) -> None:
    """The answer is a refusal, so no client waits forever."""
    store.request_size(SizeRequest(workers=5))
    membership(store, None).reconcile()
    request = store.size_request()
    assert request is not None
    assert "no cluster manager" in request.problem


def test_the_autoscaler_does_not_replace_a_users_size_request(store: VirtualStore) -> None:
    """A user's request waits while the cluster manager is unavailable; the autoscaler may replace its own request."""
    watcher = membership(store, Manager(error=StoreUnavailableError("no answer")))
    store.request_size(SizeRequest(workers=5, by="ann"))
    assert not watcher.size.request(2, "one/fit-1")
    assert store.size_request() == SizeRequest(workers=5, by="ann")
    store.withdraw_size_request(5)
    for workers in (3, 4):
        assert watcher.size.request(workers, "one/fit-1")
        found = store.size_request()
        assert found is not None
        assert (found.workers, found.by) == (workers, "autoscaler")


@pytest.mark.parametrize(
    ("pods", "at_work", "may_act"),
    [
        (fleet(0, 1, size=2), (0, 1), True),
        (fleet(0, 1, 2, size=3), (0, 1), False),  # one has no node yet, or is quarantined
        (fleet(0, size=1), (0, 9), True),  # the manager does not control a guest
        (None, (0, 1), False),  # the requested size is unknown
    ],
)
def test_the_autoscaler_acts_only_if_all_pods_are_in_use(
    store: VirtualStore, pods: Fleet | None, at_work: tuple[int, ...], may_act: bool
) -> None:
    """The manager counts idle pods, and would remove working ones instead."""
    for number in at_work:
        store.register(record(number, **({"pod": None} if number == 9 else {})))
    watcher = membership(store, Manager(pods=pods))
    watcher.snapshot(0.0)
    assert watcher.size.history().is_changing is not may_act


def test_registrations_of_removed_pods_are_removed(store: VirtualStore) -> None:
    """A registration stays if its pod is wanted, still exists, or never existed."""
    for number in range(4):
        store.register(record(number))
    store.register(record(9, worker="guest", pod=None))
    watcher = membership(store, Manager(pods=fleet(0, 2, size=2)))
    watcher.reconcile()
    assert [status.record.worker for status in store.workers()] == ["guest", "w-0", "w-1", "w-2"]
    assert set(watcher.snapshot(0.0).workers) == {"guest", "w-0", "w-1", "w-2"}


def test_the_controller_waits_a_minute_for_starting_workers(
    store: VirtualStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The minute starts when a worker is missing or the size changes; without pods there is no wait."""
    clock = [0.0]
    set_monotonic(monkeypatch, lambda: clock[0], membership_module)
    manager = Manager(pods=fleet(0, size=2))
    store.register(record(0))
    watcher = membership(store, manager)

    def is_filling(at: float) -> bool:
        clock[0] = at
        return watcher.snapshot(0.0).is_filling

    assert [is_filling(at) for at in (100.0, 159.0, 161.0)] == [True, True, False]
    manager.pods = fleet(0, 1, 2, size=3)
    assert [is_filling(at) for at in (170.0, 229.0, 231.0)] == [True, True, False]
    store.register(record(1))
    store.register(record(2))
    assert not is_filling(240.0)
    manager.pods = fleet(0, 1, size=3)
    assert is_filling(250.0)
    manager.pods = None
    assert not is_filling(251.0)


def test_size_requests_are_read_only_after_a_notification(
    store: VirtualStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is read at the start, after a notification, and while a request is pending."""
    requests: list[SizeRequest | None] = []
    size = store.size_request

    def counted() -> SizeRequest | None:
        requests.append(size())
        return requests[-1]

    monkeypatch.setattr(store, "size_request", counted)
    manager = Manager()
    watcher = membership(store, manager)
    for _ in range(3):
        watcher.reconcile()
    assert requests == [None]
    store.request_size(SizeRequest(workers=5))
    watcher.on_notification()
    manager.error = StoreUnavailableError("no answer")
    for _ in range(2):
        watcher.reconcile()
    manager.error = None
    for _ in range(2):
        watcher.reconcile()
    assert manager.sizes == [5]
    assert len(requests) == 1 + 3 + 1
    watcher.take_over()
    watcher.reconcile()
    assert len(requests) == 6
