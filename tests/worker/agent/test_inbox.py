"""The agent reads its inbox continuously, and pauses if the store answers too early."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cerebro.errors import StoreUnavailableError
from cerebro.runtime.volumes import Volumes
from cerebro.worker.agent import loop
from cerebro.worker.agent.devices import WorkerDevices
from cerebro.worker.agent.loop import Agent
from cerebro.worker.agent.reports import Resources
from cerebro.worker.agent.settings import Settings
from tests.clocks import set_monotonic


class Reader:
    """An agent's inbox thread with a fake clock and scripted response times."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        self.waits: list[float] = []
        kvs: Any = SimpleNamespace(inbox=self._inbox)
        settings = Settings(
            server="-",
            token="-",
            worker="worker-0",
            volumes=Volumes.from_environment({"CEREBRO_VOLUMES": str(folder)}),
            cores=1,
        )
        resources = Resources(devices=WorkerDevices(1), replicas=tuple, host="", pid=0)
        self._agent = Agent(kvs, settings, {}, resources)
        self._answers: list[Callable[[], tuple[()]]] = []
        set_monotonic(monkeypatch, lambda: self.now, loop)
        monkeypatch.setattr(self._agent, "_finished", self)

    def is_set(self) -> bool:
        """Return True once no responses remain, like the agent's stop event."""
        return not self._answers

    def wait(self, seconds: float) -> bool:
        """Record a pause, like the agent's stop event."""
        self.pauses.append(seconds)
        return False

    def _inbox(self, worker: str, incarnation: str, after: int, *, wait_s: float) -> tuple[()]:
        self.waits.append(wait_s)
        return self._answers.pop(0)()

    def read(self, *answers: float | Exception) -> list[float]:
        """Read with these responses, as seconds without items or an error; return the pauses."""

        def answering(answer: float | Exception) -> Callable[[], tuple[()]]:
            def call() -> tuple[()]:
                if isinstance(answer, Exception):
                    raise answer
                self.now += answer
                return ()

            return call

        self._answers = [answering(answer) for answer in answers]
        self._agent._read_inbox()
        return self.pauses


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    return Reader(tmp_path, monkeypatch)


def test_a_blocking_read_is_followed_by_the_next_read(reader: Reader) -> None:
    """The read itself already waited."""
    assert reader.read(20.0, 20.0, 11.0) == []
    assert reader.waits == [20.0] * 3


def test_an_early_empty_answer_is_followed_by_a_pause(reader: Reader) -> None:
    """The store has too many waiting readers; repeated requests at once would overload it."""
    assert reader.read(0.0, 20.0, 1.0) == [1.0, 1.0]


def test_an_unavailable_store_is_retried_after_a_pause(reader: Reader) -> None:
    """The pause prevents a busy loop on immediate errors."""
    assert reader.read(StoreUnavailableError("away"), 20.0) == [1.0]
    assert len(reader.waits) == 2
