"""Which runs are worked on: those that were begun and the first others in the queue; and how far their experiments'
logs are read.

An experiment with a fault (an error that nobody foresaw) is left alone for a while and then read anew: it must not stop
the others, and a fault of the moment must not stop it for good.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

from cerebro.contract import api
from cerebro.state.beside import obstacle
from controller.arbiter import Place
from controller.core import Core

log = logging.getLogger(__name__)

_FIRST_S, _LONGEST_S = 1.0, 60.0
"""How long an experiment is left alone after a fault: at first, and after many."""


@dataclass(kw_only=True)
class Opened:
    """An experiment that is worked on.

    Attributes:
        runs: those of its runs in the queue that are worked on.
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
        runs: those of its runs that were worked on.
    """

    until: float
    delay_s: float = _FIRST_S
    holds: frozenset[Place] = frozenset()
    runs: tuple[str, ...] = ()


@dataclass
class Experiments:
    """Those that are worked on, by name. Belongs to the loop; not thread-safe.

    Args:
        most_open: so many runs at once.
    """

    most_open: int
    opened: dict[str, Opened] = field(default_factory=dict)
    _faults: dict[str, _Fault] = field(default_factory=dict)

    def admitted(self, queue: api.QueueAnswer, now: float) -> dict[str, tuple[str, ...]]:
        """Experiments to work on, each with those of its runs in the queue that are: those that are worked on already
        stay, also if they are too many by now, and the first of the others take the places that are left. One that
        waits for another run of its experiment takes none.

        Args:
            queue: open runs, and those of them that this or an earlier controller worked on.
            now: seconds, of a clock that does not go back.
        """
        begun = {(each.experiment, each.run) for each in queue.attended.runs}
        begun |= {(name, run) for name, each in self.opened.items() for run in each.runs}
        tried = [
            entry
            for entry in queue.runs
            if self._may_be_tried(entry.experiment, now) and not self._has_to_wait(entry)
        ]
        stay = [entry for entry in tried if (entry.experiment, entry.run) in begun]
        others = [entry for entry in tried if (entry.experiment, entry.run) not in begun]
        found: dict[str, tuple[str, ...]] = {}
        for entry in (*stay, *others[: max(0, self.most_open - len(stay))]):
            found[entry.experiment] = (*found.get(entry.experiment, ()), entry.run)
        return found

    def attended(self) -> dict[str, tuple[str, ...]]:
        """Runs that are worked on, by experiment; those with a fault as well, which go on in a while."""
        aside = {name: fault.runs for name, fault in self._faults.items() if fault.runs}
        return aside | {name: each.runs for name, each in self.opened.items()}

    def cores(self) -> dict[str, Core]:
        """Of all that are worked on, as far as their logs are read."""
        return {name: each.core for name, each in self.opened.items()}

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
        each, known = self.opened.pop(name, None), self._faults.get(name)
        delay_s = known.delay_s if known is not None else _FIRST_S
        runs = each.runs if each is not None else known.runs if known is not None else ()
        self._faults[name] = _Fault(
            until=now + delay_s, delay_s=min(2 * delay_s, _LONGEST_S), holds=holds, runs=runs
        )
        return delay_s

    def held_aside(self, now: float) -> frozenset[Place]:
        """Places that experiments which are left alone may still have."""
        return frozenset().union(*(f.holds for f in self._faults.values() if now < f.until))

    def _has_to_wait(self, entry: api.QueueEntry) -> bool:
        """Whether the run waits for another one of its experiment, as far as its log is read."""
        each = self.opened.get(entry.experiment)
        run = each.core.state.runs.get(entry.run) if each is not None else None
        if each is None or run is None or not run.is_open:
            return False
        return obstacle(each.core.state.runs, run) is not None

    def _may_be_tried(self, name: str, now: float) -> bool:
        fault = self._faults.get(name)
        if fault is not None and now > fault.until + _LONGEST_S:
            del self._faults[name]  # it has gone well since
        return fault is None or now >= fault.until
