"""Errors of kvs_api's own end no thread of an agent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cerebro.errors import ServerError
from cerebro.worker.agent import slot
from cerebro.worker.agent.slot import Slot


class Reports:
    """Fails `failures` times."""

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
    """Time passes in pauses only."""
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
    """With the same steps: the result of a task is not lost."""
    one, reports = reporting(5)
    steps: list[Any] = [SimpleNamespace(task="t")]
    one._sent(steps)
    assert (reports.sent, clock) == ([steps] * 6, [5.0])


def test_a_report_that_always_fails_ends_the_worker(clock: list[float]) -> None:
    """After two minutes: a new start gives its task back."""
    one, _ = reporting(10**6)
    with pytest.raises(ServerError, match="boom"):
        one._sent([SimpleNamespace(task="t")])  # type: ignore[list-item]
    assert clock == [121.0]
