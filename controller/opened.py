"""Which experiments are worked on: those of the first runs in the queue, and how far their logs are read.

An experiment with a fault (an error that nobody foresaw) is left alone for a while and then read anew: it must not stop
the others, and a fault of the moment must not stop it for good.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cerebro.contract import api
from controller.arbiter import Place
from controller.core import Core

log = logging.getLogger(__name__)

_FIRST_S, _LONGEST_S = 1.0, 60.0
"""How long an experiment is left alone after a fault: at first, and after many."""


@dataclass(kw_only=True)
class Opened:
    """An experiment that is worked on.

    Attributes:
        runs: its runs in the queue.
        is_behind: its log is to be read to the end before anything is decided.
        is_new: that has not been done yet.
    """

    core: Core
    runs: tuple[str, ...]
    is_behind: bool = True
    is_new: bool = True


@dataclass(kw_only=True)
class _Fault:
    """An experiment that is left alone.

    Attributes:
        until: when it is tried again.
        delay_s: how long it is left alone after the next fault.
        holds: where it may still have tasks.
    """

    until: float
    delay_s: float = _FIRST_S
    holds: frozenset[Place] = frozenset()


@dataclass
class Experiments:
    """Those that are worked on, by name. Belongs to the loop; not thread-safe.

    Args:
        most_open: so many experiments at once.
    """

    most_open: int
    opened: dict[str, Opened] = field(default_factory=dict)
    _faults: dict[str, _Fault] = field(default_factory=dict)

    def admitted(self, queue: Iterable[api.QueueEntry], now: float) -> dict[str, tuple[str, ...]]:
        """Experiments to work on, each with its runs in the queue: those that are worked on already stay, and the first
        of the others take the places that are left. All runs of one experiment count as one.

        Args:
            queue: open runs, oldest first.
            now: seconds, of a clock that does not go back.
        """
        runs: dict[str, list[str]] = {}
        for entry in queue:
            if self._may_be_tried(entry.experiment, now):
                runs.setdefault(entry.experiment, []).append(entry.run)
        stay = [name for name in runs if name in self.opened]
        others = [name for name in runs if name not in self.opened]
        chosen = {*stay, *others[: max(0, self.most_open - len(stay))]}
        return {name: tuple(found) for name, found in runs.items() if name in chosen}

    def ready(self) -> dict[str, Core]:
        """Cores whose log is read to its end."""
        return {name: each.core for name, each in self.opened.items() if not each.is_behind}

    def behind(self) -> Iterator[tuple[str, Opened]]:
        """Those whose log is to be read on."""
        return ((name, each) for name, each in list(self.opened.items()) if each.is_behind)

    def look_again(self) -> None:
        """Somebody else may have written logs meanwhile: they are read to the end before anything is decided."""
        for each in self.opened.values():
            each.is_behind = True

    def set_aside(self, name: str, now: float, holds: frozenset[Place]) -> float:
        """Leave an experiment alone after a fault; how long, in seconds."""
        self.opened.pop(name, None)
        known = self._faults.get(name)
        delay_s = known.delay_s if known is not None else _FIRST_S
        self._faults[name] = _Fault(until=now + delay_s, delay_s=min(2 * delay_s, _LONGEST_S), holds=holds)
        return delay_s

    def held_aside(self, now: float) -> frozenset[Place]:
        """Places that experiments which are left alone may still have."""
        return frozenset().union(*(f.holds for f in self._faults.values() if now < f.until))

    def _may_be_tried(self, name: str, now: float) -> bool:
        fault = self._faults.get(name)
        if fault is not None and now > fault.until + _LONGEST_S:
            del self._faults[name]  # it has gone well since
        return fault is None or now >= fault.until
