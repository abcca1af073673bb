"""Internal errors of kvs_api end no thread of an agent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cerebro.errors import ServerError
from cerebro.worker.agent import slot
from cerebro.worker.agent.loop import Agent
from cerebro.worker.agent.slot import Slot


class Reports:
    """Reports whose first `failures` calls fail."""

    def __init__(self, failures: int) -> None:
        self.left, self.sent = failures, list[Any]()

    def send(self, steps: list[Any]) -> tuple[str, ...]:
        """See `cerebro.worker.agent.reports.Reports`."""
        self.sent.append(steps)
        self.left -= 1
        if self.left >= 0:
            raise ServerError("boom")
        return ("done",)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that advances only in pauses."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(slot, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    return now


def reporting(failures: int) -> tuple[Slot, Reports]:
    one, reports = Slot.__new__(Slot), Reports(failures)
    one._reports = reports  # type: ignore[assignment]
    return one, reports


def test_a_report_is_repeated(clock: list[float]) -> None:
    """The same steps are sent again, so no result is lost."""
    one, reports = reporting(5)
    steps: list[Any] = [SimpleNamespace(task="t")]
    one._sent(steps)
    assert (reports.sent, clock) == ([steps] * 6, [5.0])


class Registration:
    """A registration that fails `failures` times."""

    def __init__(self, failures: int) -> None:
        self.failures, self.kinds = failures, ["train"]

    def register(self, kinds: list[str]) -> None:
        """See `cerebro.worker.agent.reports.Reports`."""
        assert kinds == self.kinds
        self.failures -= 1
        if self.failures >= 0:
            raise ServerError("boom")


def test_an_agent_registers_as_soon_as_the_store_answers(caplog: pytest.LogCaptureFixture) -> None:
    """The outage may be long, and is logged once."""
    agent, registration, pauses = Agent.__new__(Agent), Registration(50), list[float]()
    agent._reports, agent._shared = registration, SimpleNamespace(handlers={"train": None})  # type: ignore[assignment]
    agent._finished = SimpleNamespace(wait=pauses.append)  # type: ignore[assignment]
    agent._register()
    assert (registration.failures, pauses) == (-1, [1.0] * 50)
    assert [record.message for record in caplog.records] == [
        "not registered yet, retrying until kvs_api accepts it: boom"
    ]
