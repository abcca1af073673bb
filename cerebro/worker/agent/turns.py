"""Who has the turn at a device that several units share.

At most `MAX_SEATS` units are seated at a device, each in a process of its own with its model in the device's memory.
One has the turn for a quantum; the others wait in the data loader, between two batches, until it is theirs. A turn
changes nothing of what is computed. It is the agent's own: nobody else is told, but for the seconds in a unit's result.

A process asks for the turn before its first batch (`waits`), is told when it has it (`turn`), and when another one is
to have it (`halt`). It gives the turn back at its next batch (`waits` again), and when it is trained, before it is
saved (`left`). If it ends, however it does, whoever follows it takes its seat away, and so the turn.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

GROWTH = 1.25
"""Each turn of a unit is so much longer than its last one, as with Hermes' quanta: long units switch rarely."""

Run = tuple[str, str]
"""Experiment and run."""

_numbers = itertools.count(1)


@dataclass(eq=False, kw_only=True)
class Seat:
    """One attempt at a shared device.

    Attributes:
        number: by which its process knows what it is told: an earlier task may have left messages unread.
        run: of which it is; merits are compared within a run.
        merit: the larger, the sooner it has the turn.
        turns: how many it had.
        waiting: since when it waits for the turn, by order; 0: it does not.
        since: when it got its newest turn.
        device: where it sits.
    """

    number: int
    run: Run
    merit: float
    device: Turns
    tell: Callable[[dict[str, Any]], None]
    wake: Callable[[], None]
    turns: int = 0
    waiting: int = 0
    since: float = 0.0


def whose_turn(
    waiting: Iterable[Seat], holder: Seat | None = None, last: Mapping[Run, float] | None = None
) -> Seat | None:
    """The one that has the turn next.

    Of each run the one with the largest merit, and of equals the one that waits longest, may have it; of several runs,
    the one that had it longest ago. So runs share a device evenly, and units of a run do where no merits are known.

    Args:
        holder: has the turn now, and gives it to none of its run with less merit.
        last: when a unit of a run was given the turn.

    Returns:
        `None`: the holder goes on, or nobody waits.
    """
    best: dict[Run, Seat] = {}
    for seat in sorted(waiting, key=lambda seat: (-seat.merit, seat.waiting)):
        best.setdefault(seat.run, seat)
    if holder is not None and holder.run in best and best[holder.run].merit < holder.merit:
        del best[holder.run]
    given = last or {}
    return min(best.values(), key=lambda seat: (given.get(seat.run, 0.0), seat.waiting), default=None)


class Turns:
    """Of one device. Safe for several threads.

    Args:
        quantum_s: of the first turn of a unit.
        clock: seconds.
    """

    def __init__(self, quantum_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._quantum_s, self._clock = quantum_s, clock
        self._lock = threading.Lock()
        self._seats: list[Seat] = []
        self._holder: Seat | None = None
        self._until, self._is_halted = 0.0, False
        self._order = itertools.count(1)
        self._last: dict[Run, float] = {}
        """Of runs that have a unit here: when one was given the turn."""

    def sit_down(
        self,
        tell: Callable[[dict[str, Any]], None],
        wake: Callable[[], None] = lambda: None,
        *,
        run: Run = ("", ""),
        merit: float = 0.0,
    ) -> Seat:
        """One more attempt, which does not ask for the turn yet.

        Args:
            tell: sends its process a message; must not block, nor raise where the process is gone.
            wake: has `due_s` asked again.
            run, merit: see `Seat`.
        """
        seat = Seat(number=next(_numbers), run=run, merit=merit, device=self, tell=tell, wake=wake)
        with self._lock:
            self._seats.append(seat)
        return seat

    def rise(self, seat: Seat) -> None:
        """Its attempt is over, or its process is gone. Calling twice is safe."""
        with self._lock:
            if seat in self._seats:
                self._seats.remove(seat)
                self._give_back(seat)
                if all(other.run != seat.run for other in self._seats):
                    self._last.pop(seat.run, None)

    def wait(self, seat: Seat) -> None:
        """Its process is at a batch and waits for the turn; if it had it, it gives it back."""
        with self._lock:
            if seat in self._seats:
                seat.waiting = next(self._order)
                self._take_from(seat)
                self._go_on()

    def leave(self, seat: Seat) -> None:
        """Its process wants no turn now."""
        with self._lock:
            self._give_back(seat)

    def due_s(self, seat: Seat) -> float:
        """Seconds after which `look` is to be called for one that waits; infinite while there is nothing to do."""
        with self._lock:
            if not seat.waiting or self._holder is None or self._is_halted:
                return math.inf
            return max(0.0, self._until - self._clock())

    def look(self) -> None:
        """Have the turn change if its time is over."""
        with self._lock:
            self._go_on()

    def _give_back(self, seat: Seat) -> None:
        seat.waiting = 0
        self._take_from(seat)
        self._go_on()

    def _take_from(self, seat: Seat) -> None:
        if self._holder is seat:
            self._holder, self._is_halted = None, False

    def _go_on(self) -> None:
        waiting, holder = [seat for seat in self._seats if seat.waiting], self._holder
        if not waiting or self._is_halted or (holder is not None and self._clock() < self._until):
            return
        following = whose_turn(waiting, holder, self._last)
        if holder is None and following is not None:
            self._give(following)
        elif holder is not None and following is None:
            self._begin_quantum(holder)
        elif holder is not None:
            self._is_halted = True
            holder.tell({"do": "halt", "seat": holder.number})

    def _give(self, seat: Seat) -> None:
        self._holder, seat.waiting = seat, 0
        self._last[seat.run], seat.since = next(self._order), self._clock()
        self._begin_quantum(seat)
        seat.tell({"do": "turn", "seat": seat.number})

    def _begin_quantum(self, seat: Seat) -> None:
        self._until = self._clock() + self._quantum_s * GROWTH**seat.turns
        seat.turns += 1
        for other in self._seats:
            other.wake()
