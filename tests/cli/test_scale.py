"""``cerebro scale`` and ``cerebro remove`` with a cluster manager, against the simulated store."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from cerebro.cli import main
from cerebro.cli.administration import scale as cli_scale
from cerebro.contract.records import (
    PodRef,
    SizeRequest,
    WorkerRecord,
    WorkerSetStatus,
)
from cerebro.errors import ClusterError, NotFoundError
from cerebro.runtime.kvs.client import KvsClient
from research.simulation.store import VirtualStore
from tests.waiting import HANG_S


class Store(VirtualStore):
    """A store that runs a hook on each read of the size request."""

    def __init__(self) -> None:
        self.now = 100.0
        super().__init__(lambda: self.now)
        self.on_size: Callable[[SizeRequest], object] = lambda request: None

    def size_request(self) -> SizeRequest | None:
        request = super().size_request()
        if request is not None:
            self.on_size(request)
        return super().size_request()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """Pauses cost no time."""
    monkeypatch.setattr(cli_scale, "_POLL_S", 0.0)
    return Store()


def kvs(store: Store) -> KvsClient:
    """Cast the simulated store, which has the methods used here."""
    return cast(KvsClient, store)


def join(store: Store, number: int) -> None:
    """Add a pod with its two workers."""
    name = f"w-{number}"
    for worker, kind in ((name, "train"), (f"{name}-etl", "etl")):
        pod = PodRef(name=name, uid=f"uid-{number}", container=kind)
        store.register(
            WorkerRecord(
                worker=worker, incarnation="a", weight=1.0, cores=1, kinds=(kind,), pod=pod, volume=name
            )
        )


def test_an_accepted_size_request_returns(store: Store) -> None:
    """The controller has passed the request to the cluster manager and removed it."""
    store.on_size = lambda request: store.withdraw_size_request(request.workers)
    cli_scale.request_size(kvs(store), 3, by="ann")
    assert store.size_request() is None


def test_a_refusal_shows_the_message_of_the_cluster_manager(store: Store) -> None:
    """The error also has the requested number of workers."""
    store.on_size = lambda request: store.request_size(
        request.model_copy(update={"problem": "the quota is 2"})
    )
    with pytest.raises(ClusterError, match="3 workers are not possible: the quota is 2"):
        cli_scale.request_size(kvs(store), 3, by="ann")


def test_an_unanswered_size_request_is_withdrawn(store: Store) -> None:
    """It must not take effect later."""
    with pytest.raises(ClusterError, match="was not answered within"):
        cli_scale.request_size(kvs(store), 3, by="ann", timeout_s=0.0)
    assert store.size_request() is None


def test_the_reason_for_missing_workers_is_printed_during_the_wait(store: Store) -> None:
    """The scheduler's reason is printed immediately, not at the timeout."""
    store.set_worker_set_status(
        WorkerSetStatus(pods={"w-1": "no node fits: 0/1 nodes are available: 1 Insufficient cpu."})
    )
    join(store, 0)
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        join(store, 1)

    cli_scale.await_workers(kvs(store), 2, timeout_s=HANG_S, say=say)
    assert lines == ["1 of 2 workers (w-1: no node fits: 0/1 nodes are available: 1 Insufficient cpu.)"]


def test_missing_workers_are_reported_with_their_problems(store: Store) -> None:
    """The message names a fix; late workers are still used."""
    join(store, 0)
    store.set_worker_set_status(WorkerSetStatus(pods={"w-1": "no node has 4 GPUs"}))
    with pytest.raises(ClusterError, match=r"1 of 2 workers registered .*w-1: no node has 4 GPUs"):
        cli_scale.await_workers(kvs(store), 2, timeout_s=0.0, say=lambda line: None)


def test_a_worker_is_removed_with_all_on_its_volume(store: Store) -> None:
    """A reporting worker is refused; for an unknown one the error lists the workers."""
    for number in (0, 1):
        join(store, number)
    with pytest.raises(ClusterError, match="alive"):
        cli_scale.remove(kvs(store), "w-1")
    with pytest.raises(NotFoundError, match="w-0, w-0-etl, w-1, w-1-etl"):
        cli_scale.remove(kvs(store), "w-7")
    store.now += 2 * cli_scale.CONNECTED_S
    assert cli_scale.remove(kvs(store), "w-1") == ["w-1", "w-1-etl"]
    assert [status.record.worker for status in store.workers()] == ["w-0", "w-0-etl"]


@pytest.mark.parametrize("number", ["00", "-1", "many", "1.5", ""])
def test_invalid_arguments_are_refused_in_one_sentence(
    number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before any request."""
    with pytest.raises(SystemExit) as ended:
        main(["scale", "--workers", number])
    assert ended.value.code == 2
    assert "must be a whole number from 1" in capsys.readouterr().err


def test_scale_to_zero_waits_for_the_last_worker(store: Store) -> None:
    """The command returns when the last worker is gone. It can pause the runs."""
    observed: list[SizeRequest] = []

    def take_up(request: SizeRequest) -> None:
        observed.append(request)
        store.withdraw_size_request(0)

    store.on_size = take_up
    cli_scale.request_size(kvs(store), 0, by="ann", pause=True)
    cli_scale.await_workers(kvs(store), 0, timeout_s=0.0, say=lambda line: None)
    assert observed == [SizeRequest(workers=0, by="ann", pause=True)]
