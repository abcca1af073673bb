"""A run that goes on while a page of it is open."""

from __future__ import annotations

import time

from tests.dispatcher.fakes import Bench, Clock
from tests.dispatcher.stories import NOW, Story


class Ticking(Clock):
    """A clock that goes on by itself: what was read of the store is kept for half a second, and a browser waits. It can
    be turned on from there."""

    def __call__(self) -> float:
        return self.now + time.monotonic()


def grow(bench: Bench, name: str = "digits") -> Story:
    """The story whose log the store holds, to be told further."""
    story = Story(name, began=NOW - 120)
    story.events = bench.store.logs[name]
    for event in story.events:
        story.state.apply(event)
    story.time = story.events[-1].time
    return story
