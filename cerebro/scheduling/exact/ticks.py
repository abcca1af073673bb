"""Seconds as whole numbers, for CP-SAT, which knows nothing else; and what is lost by it.

Times with at most three decimals are kept exactly. Others are cut down to a grid, never rounded up: then every schedule
is a schedule of the cut problem too, and a bound of the cut problem is a bound of the true one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_FINEST = 2**40
"""Ticks in a horizon: far below 2^63, so that sums over all sub-epochs of all workers have room."""
_COARSEST = 10**9
"""Ticks in a horizon if times have to be cut: a chain of a thousand sub-epochs then loses `result.TOLERANCE`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ticks:
    """A grid.

    Attributes:
        per_second: ticks.
        is_exact: whether every time of the problem lies on the grid.
    """

    per_second: float
    is_exact: bool

    @classmethod
    def fitting(cls, times: Sequence[float], horizon: float) -> Ticks:
        """A grid for those times, all at most `horizon` (seconds)."""
        for per_second in (1, 10, 100, 1000):
            if horizon * per_second <= _FINEST and all(_is_whole(time * per_second) for time in times):
                return cls(per_second=per_second, is_exact=True)
        return cls(per_second=_COARSEST / horizon, is_exact=False)

    def of(self, seconds: float) -> int:
        """Ticks in a time, cut down if it does not lie on the grid."""
        ticks = seconds * self.per_second
        return round(ticks) if self.is_exact else int(ticks)

    def at_least(self, seconds: float) -> int:
        """Ticks that a makespan has if it is no less than so many seconds, but for the rounding of their sum."""
        ticks = seconds * self.per_second * (1 - 1e-9)
        return math.ceil(ticks) if self.is_exact else int(ticks)

    def length(self, seconds: float) -> int:
        """The same for a sub-epoch, which takes at least a tick: one of none would have no place in an order."""
        return max(1, self.of(seconds))

    def bound(self, ticks: float, lengths: Iterable[float]) -> float:
        """Seconds that are certain, given a bound in ticks. What `length` added to sub-epochs so long is taken off."""
        added = 0 if self.is_exact else sum(1 for seconds in lengths if self.of(seconds) < 1)
        return (ticks - added) / self.per_second


def _is_whole(value: float) -> bool:
    """Whether it is a whole number, but for the rounding of a multiplication by a power of ten."""
    return abs(value - round(value)) <= 1e-12 * max(1.0, value)
