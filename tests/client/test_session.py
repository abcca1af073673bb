"""What a session says of its experiment."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from cerebro.contract.events import Event, RunFinished
from cerebro.contract.records import ExperimentRecord, Locator, Locators
from cerebro.session import Session
from tests.state.runs import TimedStory
from tests.state.stories import unit


def opened(log: Sequence[Event], now: float) -> Session:
    """A session over a store that holds this log."""
    connection: Any = SimpleNamespace(kvs=SimpleNamespace(events=lambda name, after: tuple(log[after:])))
    record = ExperimentRecord(name="one", locators=Locators(train=Locator(metadata="m.csv")))
    return Session(connection, record, clock=lambda: now)


def test_the_status_tells_the_schedule_of_a_fit() -> None:
    """Below its line, while it runs and when it has ended."""
    story = TimedStory(workers=1)
    story.fit(models=1, partitions=1)
    story.runs(unit(1, 0), 0, 0.0, 40.0)
    story.begins(unit(2, 0), 0, 42.0)
    assert opened(story.log, story.zero + 44.0).status().splitlines() == [
        "experiment one",
        "  fit-1: running, 1/2 done",
        "    schedule: 44.0 s so far, at best 42.0 s (gap 4.8 %), idle 2.0 s of 44.0 worker-seconds; epoch 2 of 2",
        "  worker-0: fit-1/train/m00/e2/p0",
    ]
    story.ends(unit(2, 0), 0, 52.0)
    story.tell(RunFinished(run="fit-1", outcome="finished"))
    assert "    schedule: 52.0 s, at best 50.0 s (gap 4.0 %)" in opened(story.log, story.zero + 99.0).status()
