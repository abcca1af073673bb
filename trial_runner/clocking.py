"""How long a batch takes: measured in blocks of batches, until both halves of them agree.

All ranks end at the same batch: rank 0 decides at the end of each block, and the others are told. Between two blocks
the devices are waited for, and the clock stands still while ranks speak.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

WARM_UP = 3
"""Batches that are not timed: memory is allocated, kernels are chosen. Fewer, where they take longer than all else."""
LEAST, MOST = 5, 30
"""Batches that are timed; more of those that take less than `SHORTEST_S` together."""
LONGEST_S, SHORTEST_S = 10.0, 0.3
"""Of a measurement, with its warm-up; and of the timed batches."""
_AGREED = 0.05
"""Relative difference of the halves."""
_BLOCK_S = 0.05
LEAST_SIGMA = 0.03


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What was measured.

    Attributes:
        batch_s: seconds of a batch on average, as a sub-epoch takes the sum of its batches.
        sigma: of the logarithm of what a sub-epoch's batches take, as far as the two halves tell.
        batches: that were timed.
    """

    batch_s: float
    sigma: float
    batches: int


@dataclass(kw_only=True)
class Stopwatch:
    """Asked by `EndingLoader` before each batch whether another one is wanted.

    Args:
        synchronize: waits until the device has done what it was given.
        together: hands on what rank 0 gives, on all ranks.
        clock: seconds.
    """

    synchronize: Callable[[], None] = lambda: None
    together: Callable[[int], int] = lambda value: value
    clock: Callable[[], float] = time.monotonic
    blocks: list[tuple[int, float]] = field(default_factory=list)
    """(batches, seconds)."""
    is_over: bool = False
    """Whether enough was seen."""
    _began: float | None = None
    _is_warm: bool = False
    _is_paused: bool = False
    _block: tuple[int, float] = (0, 0.0)
    """Batch that the present block began with, and when."""
    _next: int = 1
    """Batch at which it ends."""

    def goes_on(self, batches: int) -> bool:
        """Whether another batch is wanted after so many."""
        if self._began is None:
            self._began = self.clock()
        if self._is_paused:
            self._is_paused, self._block = False, (batches, self.clock())
        if batches >= self._next:
            self._end_block(batches)
            self._block = batches, self.clock()
        return not self.is_over

    def pause(self, batches: int) -> None:
        """There are no more batches for now; the clock stands still until `goes_on` is asked again."""
        if self._began is None or batches == 0:
            self.is_over = True  # user code does not read the data
            return
        self._end_block(batches)
        self._is_paused = True

    def _end_block(self, batches: int) -> None:
        self.synchronize()
        now, (first, began) = self.clock(), self._block
        if self._is_warm and batches > first:
            self.blocks.append((batches - first, now - began))
        is_late = self._began is not None and now - self._began >= LONGEST_S
        self._is_warm = self._is_warm or batches >= WARM_UP or is_late
        length = self.together(self._wanted(now, batches))
        self.is_over, self._next = length == 0, batches + length

    def pace(self) -> Pace:
        """What was measured; a `batch_s` of 0 if nothing was."""
        if not self.blocks:
            return Pace(batch_s=0.0, sigma=LEAST_SIGMA, batches=0)
        batches = sum(count for count, _ in self.blocks)
        return Pace(
            batch_s=sum(seconds for _, seconds in self.blocks) / batches,
            sigma=max(LEAST_SIGMA, self._apart() / math.sqrt(2)),
            batches=batches,
        )

    def _wanted(self, now: float, batches: int) -> int:
        """Length of the next block; 0: enough was seen."""
        assert self._began is not None
        is_late = now - self._began >= LONGEST_S
        if not self._is_warm:
            return 1
        if not self.blocks:
            # One block at least, of a batch if batches are that long.
            return 1 if is_late else self._length(now, batches)
        timed, seconds = sum(count for count, _ in self.blocks), sum(s for _, s in self.blocks)
        is_enough = timed >= LEAST and seconds >= SHORTEST_S and len(self.blocks) >= 2
        if is_late or (is_enough and (timed >= MOST or self._apart() <= _AGREED)):
            return 0
        return self._length(now, batches)

    def _length(self, now: float, batches: int) -> int:
        """So many batches that looking at the clock between them costs nothing."""
        assert self._began is not None
        timed = sum(count for count, _ in self.blocks)
        seconds = sum(s for _, s in self.blocks)
        batch_s = seconds / timed if timed else (now - self._began) / max(1, batches)
        return max(1, min(1_000, round(_BLOCK_S / batch_s))) if batch_s > 0 else 1_000

    def _apart(self) -> float:
        """The logarithm of the ratio of the two halves' rates."""
        half = len(self.blocks) // 2
        if not half:
            return math.inf
        first, second = self.blocks[:half], self.blocks[half:]
        rates = [sum(s for _, s in part) / sum(n for n, _ in part) for part in (first, second)]
        return abs(math.log(rates[0] / rates[1])) if min(rates) > 0 else math.inf
