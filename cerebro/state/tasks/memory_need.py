"""Memory need of a task that ran out of memory alone on its worker. Pure.

The need is 10 % above the larger of peak and limit, or 25 % above the limit without a measured peak. A worker offers
95 % of its memory: its own processes or the driver use the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from cerebro.contract.parallel_plans import MemoryKind
from cerebro.contract.tasks.failures import Failure

_BEYOND_PEAK, _BEYOND_LIMIT = 1.1, 1.25
USABLE = 0.95
"""Share of a worker's memory that tasks may use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lack:
    """Lack of memory in attempts at one task, each alone on its worker.

    Attributes:
        memory_kind: the memory that ran out.
        limit_bytes: largest limit of an attempt.
        peak_bytes: largest measured use; 0 if unknown.
    """

    memory_kind: MemoryKind
    limit_bytes: int
    peak_bytes: int = 0

    def need_bytes(self, peak_bytes: int = 0) -> int:
        """Return the memory for the next attempt.

        Args:
            peak_bytes: peak of the model's other sub-epochs; 0 if unknown.
        """
        peak = max(self.peak_bytes, peak_bytes)
        return math.ceil(
            _BEYOND_PEAK * max(peak, self.limit_bytes) if peak else _BEYOND_LIMIT * self.limit_bytes
        )


def has_room(limit_bytes: int, need_bytes: int) -> bool:
    """Return True if a worker with this limit can run a task with this need."""
    return need_bytes <= USABLE * limit_bytes


def have_grown(previous: Iterable[Lack], now: Iterable[Lack]) -> bool:
    """Return True if a larger limit than before was too small."""
    known = {lack.memory_kind: lack.limit_bytes for lack in previous}
    return any(lack.limit_bytes > known.get(lack.memory_kind, 0) for lack in now)


def with_failure(lacks: Iterable[Lack], failure: Failure) -> tuple[Lack, ...]:
    """Add a failed attempt that ran alone; without memory kind and limit it adds nothing."""
    known = {lack.memory_kind: lack for lack in lacks}
    if failure.memory_kind is not None and failure.limit_bytes:
        previous_lack = known.get(failure.memory_kind)
        known[failure.memory_kind] = Lack(
            memory_kind=failure.memory_kind,
            limit_bytes=max(failure.limit_bytes, previous_lack.limit_bytes if previous_lack else 0),
            peak_bytes=max(failure.peak_bytes, previous_lack.peak_bytes if previous_lack else 0),
        )
    return tuple(known.values())
