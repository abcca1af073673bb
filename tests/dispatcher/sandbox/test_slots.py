"""A few requests of one user queue up; only a large number is refused."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dispatcher.sandbox.bounded_processes import BoundedProcesses, ProcessResult
from dispatcher.sandbox.slots import BusyError, Slots
from tests.waiting import HANG_S


def test_concurrent_requests_of_a_browser_are_all_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six requests run two at a time."""
    all_sent = threading.Barrier(6)
    at_work, most = [0], [0]
    lock = threading.Lock()

    def work(_: BoundedProcesses, question: bytes, timeout_s: float) -> ProcessResult:
        with lock:
            at_work[0] += 1
            most[0] = max(most[0], at_work[0])
        with lock:
            at_work[0] -= 1
        return ProcessResult(output=question, code=0)

    monkeypatch.setattr(BoundedProcesses, "_run", work)
    processes = BoundedProcesses("json.tool", at_once=2)

    def send(number: int) -> bytes:
        all_sent.wait()
        return processes.run(b"%d" % number, timeout_s=HANG_S).output

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(send, range(6))) == [b"%d" % number for number in range(6)]
    assert most[0] <= 2


def test_excess_requests_are_refused_as_busy() -> None:
    """A released slot can be used again."""
    slots = Slots("checks", at_once=1, waiting=0)
    message = "the page is busy with other checks: try again in a moment"
    with slots.taken(wait_s=0.0), pytest.raises(BusyError, match=message), slots.taken(wait_s=60.0):
        pass
    slots = Slots("checks", at_once=1, waiting=1)
    with slots.taken(wait_s=0.0), pytest.raises(BusyError, match=message), slots.taken(wait_s=0.0):
        pass
    with slots.taken(wait_s=0.0):
        pass
