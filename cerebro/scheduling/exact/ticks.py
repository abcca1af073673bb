"""Conversion of seconds to integers for CP-SAT, and the resulting loss.

Times with at most three decimals are exact. Others are rounded down to a grid, never up: then every schedule
is also a schedule of the rounded problem, and a bound of the rounded problem is a bound of the true one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_FINEST = 2**40
"""Maximum ticks in a horizon.

Far below 2^63, so sums over all sub-epochs of all workers fit.
"""
_COARSEST = 10**9
"""Ticks in a horizon for rounded times: a chain of 1,000 sub-epochs then loses `result.TOLERANCE`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ticks:
    """A time grid.

    Attributes:
        per_second: ticks per second.
        is_exact: True if every time of the problem lies on the grid.
    """

    per_second: float
    is_exact: bool

    @classmethod
    def fitting(cls, times: Sequence[float], horizon: float) -> Ticks:
        """Return a grid for these times, all at most `horizon` (seconds)."""
        for per_second in (1, 10, 100, 1000):
            if horizon * per_second <= _FINEST and all(_is_whole(time * per_second) for time in times):
                return cls(per_second=per_second, is_exact=True)
        return cls(per_second=_COARSEST / horizon, is_exact=False)

    def of(self, seconds: float) -> int:
        """Convert seconds to ticks, rounded down off the grid."""
        ticks = seconds * self.per_second
        return round(ticks) if self.is_exact else int(ticks)

    def at_least(self, seconds: float) -> int:
        """Convert a lower bound in seconds to ticks, with tolerance for float sums."""
        ticks = seconds * self.per_second * (1 - 1e-9)
        return math.ceil(ticks) if self.is_exact else int(ticks)

    def length(self, seconds: float) -> int:
        """Convert a duration to at least one tick.

        A sub-epoch of 0 ticks would have no position in an order.
        """
        return max(1, self.of(seconds))

    def bound(self, ticks: float, lengths: Iterable[float]) -> float:
        """Convert a bound in ticks to safe seconds.

        Subtract the ticks that `length` added to short sub-epochs.
        """
        added = 0 if self.is_exact else sum(1 for seconds in lengths if self.of(seconds) < 1)
        return (ticks - added) / self.per_second


def _is_whole(value: float) -> bool:
    """Return whether the value is whole, up to rounding of one multiplication."""
    return abs(value - round(value)) <= 1e-12 * max(1.0, value)
