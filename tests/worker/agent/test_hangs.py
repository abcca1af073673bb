"""Hang detection with real processes."""

from __future__ import annotations

import time

import pytest

from cerebro.contract.events import TaskCommitted, TaskFailed, TaskStarted
from cerebro.contract.tasks.failures import FailureKind
from tests.worker.agent.agents import Agents, until

pytestmark = pytest.mark.slow
LIMIT_S = 4.0


def started(agents: Agents, key: str) -> float:
    """Return the start time of an attempt."""
    events = agents.bench.store.events("one")
    return next(event.time for event in events if isinstance(event, TaskStarted) and event.task == key)


def test_an_idle_process_is_dumped_and_ended_within_10_s_of_its_limit(agents: Agents) -> None:
    """The log has two stack dumps, and the failure says "idle"."""
    agents.start()
    key = agents.give(1, "hang", hang_timeout_s=LIMIT_S)
    event = agents.end_of(key)
    assert isinstance(event, TaskFailed)
    assert event.failure.kind is FailureKind.HANG
    assert event.time - started(agents, key) >= LIMIT_S
    assert "fake_handler.py" in event.failure.traceback
    assert agents.log(1).count("most recent call first") >= 2
    assert event.failure.is_idle


def test_a_busy_process_continues_beyond_its_limit(agents: Agents) -> None:
    """It may finish; at three times the limit it fails as busy."""
    agents.start()
    key = agents.give(1, "spin", hang_timeout_s=LIMIT_S)
    agents.begun(1)
    began = started(agents, key)
    until(lambda: time.time() - began > LIMIT_S + 1, "the limit is over")
    agents.gate(1).touch()
    assert isinstance(agents.end_of(key), TaskCommitted)
    kind, message = agents.failure(agents.give(2, "spin", hang_timeout_s=1.0))
    assert kind is FailureKind.HANG
    assert "though its processes compute" in message


def test_a_process_blocked_in_the_kernel_is_a_volume_failure(agents: Agents) -> None:
    """Its stack cannot be dumped because no signal reaches it. The sub-epoch is retried elsewhere."""
    agents.start()
    kind, message = agents.failure(agents.give(1, "kernel", hang_timeout_s=3.0))
    assert kind is FailureKind.UNAVAILABLE, message
    assert "waits in the kernel" in message
    assert "a volume or a device does not answer" in message
    assert isinstance(agents.end_of(agents.give(2, "work")), TaskCommitted)
