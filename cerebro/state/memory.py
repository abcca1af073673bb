"""How much memory a task needs that ran out of it while it had its worker to itself. Pure.

Whatever it took at most, and whatever there was, was too little: it needs a tenth more than the larger of the two, and
a quarter more than there was where nothing was measured. A worker has room for what needs at most 95 % of its memory:
the rest is for the worker's own processes, or what a driver keeps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from cerebro.contract.parallel_plans import MemoryPlace
from cerebro.contract.tasks import Failure

_BEYOND_PEAK, _BEYOND_LIMIT = 1.1, 1.25
USABLE = 0.95
"""Of the memory that there is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lack:
    """That memory ran out in attempts at one task which had their worker to themselves.

    Attributes:
        place: whose memory.
        limit_bytes: the most of it that one of them had.
        peak_bytes: the most that one of them was seen to take; 0: not known.
    """

    place: MemoryPlace
    limit_bytes: int
    peak_bytes: int = 0

    def need_bytes(self, peak_bytes: int = 0) -> int:
        """What another attempt is to have.

        Args:
            peak_bytes: the most that sub-epochs of the same model took; 0: not known.
        """
        peak = max(self.peak_bytes, peak_bytes)
        return math.ceil(
            _BEYOND_PEAK * max(peak, self.limit_bytes) if peak else _BEYOND_LIMIT * self.limit_bytes
        )


def has_room(limit_bytes: int, need_bytes: int) -> bool:
    """Whether so much memory is enough for what needs so much."""
    return need_bytes <= USABLE * limit_bytes


def have_grown(before: Iterable[Lack], now: Iterable[Lack]) -> bool:
    """Whether it is known by now that more memory than that was too little."""
    known = {lack.place: lack.limit_bytes for lack in before}
    return any(lack.limit_bytes > known.get(lack.place, 0) for lack in now)


def with_failure(lacks: Iterable[Lack], failure: Failure) -> tuple[Lack, ...]:
    """What is known, with one more attempt that was alone; of what does not say whose memory it was and how much there
    was, nothing is learned."""
    known = {lack.place: lack for lack in lacks}
    if failure.place is not None and failure.limit_bytes:
        before = known.get(failure.place)
        known[failure.place] = Lack(
            place=failure.place,
            limit_bytes=max(failure.limit_bytes, before.limit_bytes if before else 0),
            peak_bytes=max(failure.peak_bytes, before.peak_bytes if before else 0),
        )
    return tuple(known.values())
