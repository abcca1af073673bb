"""A run whose log grows while a page is open."""

from __future__ import annotations

import time

from tests.dispatcher.fakes import Bench, Clock
from tests.dispatcher.stories import NOW, Story


class Ticking(Clock):
    """A clock that runs in real time and can also be advanced. Data from the store is cached for 0.5 s."""

    def __call__(self) -> float:
        return self.now + time.monotonic()


def grow(bench: Bench, name: str = "digits") -> Story:
    """Extend the story of the stored log."""
    story = Story(name, began=NOW - 120)
    story.events = bench.store.logs[name]
    for event in story.events:
        story.state.apply(event)
    story.time = story.events[-1].time
    return story
