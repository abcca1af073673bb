"""Units that share a simulated device in turns, as if turns were short: those whose turn it is have it evenly.

As a worker's agent gives turns (`cerebro.worker.agent.turns`): runs share a device evenly, and of a run the units with
the largest merit go on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

_ROUNDING_S = 1e-9


@dataclass(kw_only=True)
class _Unit:
    run: Hashable
    merit: float
    left_s: float
    seconds: float
    is_there: Callable[[], bool]
    end: Callable[[], None]


class SharedDevice:
    """One device of a simulated worker.

    Args:
        now: the clock, seconds.
        at: has something happen at a time.
    """

    def __init__(self, now: Callable[[], float], at: Callable[[float, Callable[[], None]], None]) -> None:
        self._now, self._at = now, at
        self._units: dict[Hashable, _Unit] = {}
        self._seen, self._number = 0.0, 0
        """When work was last counted; of the newest look ahead."""

    def begin(
        self,
        name: Hashable,
        seconds: float,
        *,
        run: Hashable,
        merit: float,
        is_there: Callable[[], bool],
        end: Callable[[], None],
    ) -> None:
        """One more unit, which takes so many seconds alone.

        Args:
            is_there: whether it still runs; asked whenever work is counted.
            end: called when it is done.
        """
        self.look()
        self._units[name] = _Unit(
            run=run, merit=merit, left_s=seconds, seconds=seconds, is_there=is_there, end=end
        )
        self._look_ahead()

    def done(self, name: Hashable) -> float:
        """The share of a unit that is done, also of one that has just gone."""
        self._count()
        unit = self._units.get(name)
        return 1.0 if unit is None else 1 - unit.left_s / unit.seconds

    def look(self) -> None:
        """Count the work until now, and end what is done."""
        self._count()
        self._units = {name: unit for name, unit in self._units.items() if unit.is_there()}
        ended = [name for name, unit in self._units.items() if unit.left_s <= _ROUNDING_S]
        for end in [self._units.pop(name).end for name in ended]:
            end()
        self._look_ahead()

    def _count(self) -> None:
        passed, self._seen = self._now() - self._seen, self._now()
        for name, rate in self._rates().items():
            self._units[name].left_s -= passed * rate

    def _rates(self) -> dict[Hashable, float]:
        best: dict[Hashable, list[Hashable]] = {}
        for name, unit in self._units.items():
            others = best.setdefault(unit.run, [])
            if others and unit.merit > self._units[others[0]].merit:
                others.clear()
            if not others or unit.merit == self._units[others[0]].merit:
                others.append(name)
        return {name: 1 / len(best) / len(names) for names in best.values() for name in names}

    def _look_ahead(self) -> None:
        self._number += 1
        number = self._number
        ends = [self._units[name].left_s / rate for name, rate in self._rates().items()]
        if ends:
            self._at(self._now() + max(0.0, min(ends)), lambda: self._look_if(number))

    def _look_if(self, number: int) -> None:
        """Unless another look was planned since."""
        if self._number == number:
            self.look()
