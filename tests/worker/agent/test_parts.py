"""Parts of the agent: mailbox, lease, channel, settings, failure kinds."""

from __future__ import annotations

import select
import time
from types import SimpleNamespace
from typing import Any

import pytest

from cerebro import errors
from cerebro.contract.events import LivePoint
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.inbox import InboxItem
from cerebro.runtime.kvs.client import KvsClient
from cerebro.worker.agent.devices import WorkerDevices
from cerebro.worker.agent.lease import Lease
from cerebro.worker.agent.loop import Agent
from cerebro.worker.agent.mailbox import DeviceQueues, Mailbox
from cerebro.worker.agent.reports import Resources, SupersededError
from cerebro.worker.agent.settings import Settings
from cerebro.worker.agent.slot import Slot
from cerebro.worker.child.task_loop import failure_of


def item(task: str = "t", attempt: int = 1, *, cancel: bool = False) -> InboxItem:
    return InboxItem(seq=1, experiment="one", task=task, attempt=attempt, cancel=cancel)


# --- mailbox -----------------------------------------------------------------------------------------


def is_ringing(mailbox: Mailbox) -> bool:
    return bool(select.select([mailbox], [], [], 0)[0])


def mailbox_of(queues: DeviceQueues | None = None) -> Mailbox:
    return Mailbox(queues or DeviceQueues(lambda devices: None))


def test_items_are_processed_in_order() -> None:
    """`peek` removes nothing. The next item is taken once the first one left, or in the same step."""
    queues = DeviceQueues(lambda devices: None)
    mailbox = mailbox_of(queues)
    assert mailbox.next() is mailbox.peek() is None
    for name in ("a", "b", "c"):
        mailbox.put(item(name))
    assert mailbox.peek() == item("a")
    assert [mailbox.next(), mailbox.next(), mailbox.next(item("a"))] == [item("a"), None, item("b")]
    queues.leave(item("a"))
    assert mailbox.next() is None
    queues.leave(item("b"))
    assert [mailbox.next(), mailbox.next()] == [item("c"), None]


def test_a_cancelled_attempt_is_dropped_and_no_other() -> None:
    """The task's next attempt stays, and a missing attempt returns False."""
    mailbox = mailbox_of()
    for given in (item("a", 1), item("a", 2), item("b", 1)):
        mailbox.put(given)
    assert mailbox.remove(item("a", 1, cancel=True))
    assert not mailbox.remove(item("a", 1, cancel=True))
    assert [mailbox.next(), *mailbox.take_all()] == [item("a", 2), item("b", 1)]


def test_a_notification_stays_until_it_is_drained() -> None:
    """A selector sees both items and wake-ups, once for any number."""
    mailbox = mailbox_of()
    assert not is_ringing(mailbox)
    for _ in range(100_000):
        mailbox.wake()
    assert is_ringing(mailbox)
    mailbox.drain()
    assert not is_ringing(mailbox)
    mailbox.put(item())
    assert is_ringing(mailbox)


# --- lease -------------------------------------------------------------------------------------------


def point(rows: int, **values: float) -> LivePoint:
    return LivePoint(task="t", attempt=1, rows=rows, values=values)


def test_only_the_running_attempt_can_be_lost() -> None:
    """A revocation of another attempt or task is ignored, and a new attempt starts clean."""
    lease = Lease()
    lease.lose(item())
    assert not lease.is_lost
    lease.begin(item("t", 2))
    found = []
    for cancelled in (item("t", 1), item("u", 2), item("t", 2, cancel=True)):
        lease.lose(cancelled)
        found.append(lease.is_lost)
    assert found == [False, False, True]
    lease.begin(item("t", 3))
    assert not lease.is_lost


def test_the_last_points_of_an_ended_attempt_are_still_sent() -> None:
    """The lease has ended, but the points must precede the commit."""
    lease = Lease()
    lease.begin(item())
    lease.progress(point(5, loss=1.0))
    found = []
    for ended in (item("u"), item()):
        lease.end(ended)
        found.append(lease.attempts)
    assert found == [(item(),), ()]
    assert len(lease.take_points()[1]) == 1
    lease.progress(point(6))
    lease.begin(item("u"))
    assert lease.take_points() == (item("u"), ())


# --- channel -----------------------------------------------------------------------------------------


# --- failures ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("x"), FailureKind.USER_ERROR),
        (KeyboardInterrupt(), FailureKind.USER_ERROR),
        (errors.MetricError("x"), FailureKind.USER_ERROR),
        (errors.SpecError("x"), FailureKind.USER_ERROR),
        (errors.NonFiniteMetricError("x"), FailureKind.NON_FINITE),
        (errors.CheckpointCorruptError("x"), FailureKind.CHECKPOINT),
        (errors.StorageFullError("x"), FailureKind.STORAGE_FULL),
        (errors.ObjectStoreError("x"), FailureKind.UNAVAILABLE),
        (errors.ShardCorruptError("x"), FailureKind.DATA),
        (errors.ShardCorruptError.at("x", "/volumes/x"), FailureKind.UNAVAILABLE),
        (errors.DataError("x"), FailureKind.DATA),
        (MemoryError(), FailureKind.OUT_OF_MEMORY),
    ],
)
def test_each_error_has_its_kind(error: BaseException, kind: FailureKind) -> None:
    """The kind decides about retries, and whether the model or the run ends."""
    assert failure_of(error).kind is kind


@pytest.mark.parametrize(
    ("error", "memory_kind"),
    [
        (MemoryError(), "host"),
        (
            type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory. Tried to allocate 2 GiB"),
            "device",
        ),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
            "device",
        ),
        (
            RuntimeError("NCCL error: ncclUnhandledCudaError: Last error: Cuda failure 2 'out of memory'"),
            "device",
        ),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory"),
            "host",
        ),
        (RuntimeError("could not create a primitive"), "host"),
        # Error texts when threads of a rank's connections get no memory.
        (RuntimeError("Resource temporarily unavailable"), "host"),
        (RuntimeError("can't start new thread"), "host"),
        (RuntimeError("std::bad_alloc"), "host"),
        (OSError(12, "Cannot allocate memory"), "host"),
        (BlockingIOError(11, "Resource temporarily unavailable"), None),
        (RuntimeError("the printer said: Resource temporarily unavailable"), None),
        (
            RuntimeError("could not create a primitive descriptor for an LSTM forward propagation primitive"),
            None,
        ),
        (RuntimeError("the dictionary was out of memory of older words"), None),
        (errors.StorageFullError("CUDA out of memory"), None),
    ],
)
def test_lack_of_memory_is_known_by_type_and_by_text(error: BaseException, memory_kind: str | None) -> None:
    """Host and device memory are told apart, and texts quoted by the platform's errors are ignored."""
    failure = failure_of(error)
    assert failure.memory_kind == memory_kind
    assert (failure.kind is FailureKind.OUT_OF_MEMORY) == (memory_kind is not None)


# --- loop --------------------------------------------------------------------------------------------


def agent_of(devices: int = 1) -> Agent:
    settings = Settings.from_environment({"CEREBRO_TOKEN": "secret", "CEREBRO_WORKER": "worker-3"})
    resources = Resources(devices=WorkerDevices(devices, devices), replicas=tuple, host="here", pid=1)
    return Agent(KvsClient("http://127.0.0.1:9", "secret"), settings, {}, resources)


def slot_of(agent: Agent, monkeypatch: pytest.MonkeyPatch, devices: tuple[int, ...] = (0,)) -> Slot:
    """Return a slot without a running thread."""
    monkeypatch.setattr(Slot, "work", lambda self: None)
    agent._finished.set()  # the slot's thread would wait for the agent's end
    return agent._slot(devices)


def test_a_task_revoked_immediately_keeps_the_child_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wake-up without an item must not end the child, because a new one would import torch again."""
    agent = agent_of()
    slot = slot_of(agent, monkeypatch)
    child: Any = SimpleNamespace(used=time.monotonic(), is_resting=True)
    place = ((0,), "handler")
    agent._children._children[place] = child
    slot.mailbox.put(item())
    agent._cancel(item(cancel=True))
    assert slot._await_item() is None
    agent._children.tidy()
    assert agent._children._children == {place: child}


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "odd"), FailureKind.CRASH),
        (ValueError("caf\udce9"), FailureKind.CRASH),
        (OSError("no processes left"), FailureKind.CRASH),
        (errors.ArchiveError("x"), FailureKind.DATA),
    ],
)
def test_an_internal_error_of_the_agent_fails_only_its_attempt(
    monkeypatch: pytest.MonkeyPatch, problem: Exception, kind: FailureKind
) -> None:
    """An internal error of the agent fails the attempt with its cause, and the child ends."""
    agent = agent_of()
    execution = slot_of(agent, monkeypatch).execution
    ended: list[bool] = []
    child: Any = SimpleNamespace(kill=lambda: ended.append(True), used=0.0)
    place = ((0,), "h")

    def fail(item: InboxItem) -> Any:
        agent._children._children[place] = child
        agent._children._busy[place] = (0,)
        raise problem

    monkeypatch.setattr(execution, "_follow", fail)
    ((_, failure),) = execution.run(item())
    assert isinstance(failure, Failure)
    assert failure.kind is kind
    assert str(problem).encode("ascii", "backslashreplace").decode() in failure.message
    assert ended
    monkeypatch.setattr(execution, "_follow", lambda item: (_ for _ in ()).throw(SupersededError()))
    with pytest.raises(SupersededError):
        execution.run(item())


# --- settings ----------------------------------------------------------------------------------------


def test_a_worker_needs_a_token_and_a_name() -> None:
    """The error names both variables; the token is not printed."""
    with pytest.raises(errors.ClusterError, match="CEREBRO_TOKEN and CEREBRO_WORKER"):
        Settings.from_environment({})
    settings = Settings.from_environment({"CEREBRO_TOKEN": "secret", "CEREBRO_WORKER": "worker-3"})
    assert settings.worker == "worker-3"
    assert "secret" not in repr(settings)
    assert settings.report_s == settings.lease_s / 5
