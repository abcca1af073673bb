"""Hostile user code costs one failed attempt with its cause, and never the worker."""

from __future__ import annotations

import pytest

from cerebro.contract.events import TaskCommitted, TaskFailed
from cerebro.contract.tasks.failures import MAX_MESSAGE, FailureKind
from tests.worker.agent.agents import Agents
from tests.worker.agent.fake_handler import HOSTILE

CAUSES = {
    "surrogate": r"ValueError: caf\udce9 \x00\x1b[31m end",
    "huge": "ValueError: xxx",
    "huge exit": "user code called exit(yyy",
    "odd exit": "user code called exit(('\\ud800', 7))",
    "interrupt": "KeyboardInterrupt (user code raised a BaseException",
    "generator exit": "GeneratorExit: done (user code",
    "beyond": "Beyond: away (user code",
    "unprintable": "UnprintableError: (its text cannot be had: __str__ raised RuntimeError)",
    "nameless": "an exception whose type has no name: who",
    "closed": "ValueError: with closed streams",
    "closed descriptors": "ValueError: with closed streams",
    "replaced": "ValueError: without stdout",
    "text": "ValueError: after the babble",
    "json": "ValueError: after the babble",
    "binary": "ValueError: after the babble",
    "long": "ValueError: after the babble",
}


@pytest.fixture
def warm(agents: Agents) -> Agents:
    """A worker whose child process runs."""
    agents.start()
    assert isinstance(agents.end_of(agents.give(0, "work")), TaskCommitted)
    return agents


@pytest.mark.slow
def test_every_hostile_end_is_reported_with_its_cause(warm: Agents) -> None:
    """The process survives, and the messages can be stored and printed."""
    incarnation = warm.incarnation()
    for number, (do, cause) in enumerate(CAUSES.items(), 1):
        event = warm.end_of(warm.give(number, do))
        assert isinstance(event, TaskFailed), do
        assert (event.failure.kind, event.failure.message.startswith(cause)) == (
            FailureKind.USER_ERROR,
            True,
        ), event
        assert len(event.failure.message) <= MAX_MESSAGE + 100
        assert "cerebro/worker/agent" not in event.failure.traceback
        event.model_dump_json().encode()
    assert set(CAUSES) == set(HOSTILE)
    assert isinstance(warm.end_of(warm.give(99, "work")), TaskCommitted)
    assert warm.incarnation() == incarnation


def test_the_log_of_an_attempt_truncates_long_messages(warm: Agents) -> None:
    """A message of 100 MB is truncated; the next task prints although the streams were closed."""
    for number, do in enumerate(("huge", "closed", "raise"), 1):
        warm.end_of(warm.give(number, do))
    logs = [warm.log(number) for number in (1, 2, 3)]
    assert "ValueError: xxx" in logs[0]
    assert max(len(log) for log in logs) < 40_000
    assert "raise attempt 1" in logs[2]
    assert "boom" in logs[2]


def test_a_task_that_floods_the_connection_counts_as_hung(warm: Agents) -> None:
    """Noise is no progress; the failure mentions it."""
    kind, message = warm.failure(warm.give(1, "flood", hang_timeout_s=0.5))
    assert kind is FailureKind.HANG
    assert "user code wrote to the connection between its process and the worker" in message
    assert isinstance(warm.end_of(warm.give(2, "work")), TaskCommitted)
