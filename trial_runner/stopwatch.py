"""Measurement of the time per batch, in blocks of batches.

`trial_runner.trial` gives one `Stopwatch` to each trial; `LimitedLoader` asks it before each batch. It stops when the
first and the second half of the blocks agree, after `MAX_BATCHES`, or after `LONGEST_S`. Rank 0 decides after each
block, so all ranks stop after the same batch. Devices are synchronized after each block. The exchange of rank 0's
decision between two blocks is not timed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

WARM_UP = 3
"""Untimed first batches, for memory allocation and kernel selection; fewer if they take `LONGEST_S`."""
MIN_BATCHES, MAX_BATCHES = 5, 30
"""The halves must agree after `MIN_BATCHES` timed batches, but not after `MAX_BATCHES`. Both wait for `SHORTEST_S`."""
LONGEST_S, SHORTEST_S = 10.0, 0.3
"""Seconds after which no block begins if one is timed; minimum seconds of timed batches before that."""
_MAX_DIFFERENCE = 0.05
"""Largest relative difference of two halves that agree."""
_BLOCK_S = 0.05
"""Approximate seconds of a block."""
MIN_SIGMA = 0.03
"""Least `Pace.sigma`, also for two equal halves: a short measurement is no exact forecast."""
PRIOR_SIGMA = 0.2
"""`Pace.sigma` if no halves can be compared: the prior error of `cerebro.scheduling.estimates`."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Measured time per batch.

    Attributes:
        batch_s: average seconds of a batch.
        sigma: standard deviation of the logarithm of a sub-epoch's time, estimated from the two halves, at least
            `MIN_SIGMA`; with one block `PRIOR_SIGMA`.
        batches: number of timed batches.
    """

    batch_s: float
    sigma: float
    batches: int


@dataclass(kw_only=True)
class Stopwatch:
    """Times batches and decides whether `LimitedLoader` returns another one.

    Args:
        synchronize: waits until the device has finished its work.
        together: returns rank 0's value on all ranks.
        clock: returns seconds.
    """

    synchronize: Callable[[], None] = lambda: None
    together: Callable[[int], int] = lambda value: value
    clock: Callable[[], float] = time.monotonic
    blocks: list[tuple[int, float]] = field(default_factory=list)
    """Timed blocks: (batches, seconds)."""
    is_over: bool = False
    """True after enough batches were timed."""
    _began: float | None = None
    _is_warm: bool = False
    _is_paused: bool = False
    _block: tuple[int, float] = (0, 0.0)
    """First batch of the current block, and its start time."""
    _next: int = 1
    """Batch that ends the current block."""

    def should_continue(self, batches: int) -> bool:
        """Return True if another batch is wanted.

        Args:
            batches: number of earlier batches.
        """
        if self._began is None:
            self._began = self.clock()
        if self._is_paused:
            self._is_paused, self._block = False, (batches, self.clock())
        if batches >= self._next:
            self._end_block(batches)
            self._block = batches, self.clock()
        return not self.is_over

    def pause(self, batches: int) -> None:
        """Stop the clock after a pass over the partition, until the next `should_continue`."""
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
        length = self.together(self._next_length(now, batches))
        self.is_over, self._next = length == 0, batches + length

    def pace(self) -> Pace:
        """Return the measurement; `batch_s` is 0 if no batch was timed."""
        if not self.blocks:
            return Pace(batch_s=0.0, sigma=MIN_SIGMA, batches=0)
        batches, difference = sum(count for count, _ in self.blocks), self._half_difference()
        return Pace(
            batch_s=sum(seconds for _, seconds in self.blocks) / batches,
            sigma=max(MIN_SIGMA, difference / math.sqrt(2)) if math.isfinite(difference) else PRIOR_SIGMA,
            batches=batches,
        )

    def _next_length(self, now: float, batches: int) -> int:
        """Return the length of the next block, or 0 after enough batches."""
        assert self._began is not None
        is_late = now - self._began >= LONGEST_S
        if not self._is_warm:
            return 1
        if not self.blocks:
            # Time at least one block, of one batch if the time is over.
            return 1 if is_late else self._block_length(now, batches)
        timed, seconds = sum(count for count, _ in self.blocks), sum(s for _, s in self.blocks)
        is_enough = timed >= MIN_BATCHES and seconds >= SHORTEST_S and len(self.blocks) >= 2
        if is_late or (is_enough and (timed >= MAX_BATCHES or self._half_difference() <= _MAX_DIFFERENCE)):
            return 0
        return self._block_length(now, batches)

    def _block_length(self, now: float, batches: int) -> int:
        """Return the number of batches in about `_BLOCK_S` seconds, so that the cost of the clock is negligible."""
        assert self._began is not None
        timed = sum(count for count, _ in self.blocks)
        seconds = sum(s for _, s in self.blocks)
        batch_s = seconds / timed if timed else (now - self._began) / max(1, batches)
        return max(1, min(1_000, round(_BLOCK_S / batch_s))) if batch_s > 0 else 1_000

    def _half_difference(self) -> float:
        """Return the absolute logarithm of the ratio of both halves' rates; infinite without two rates."""
        half = len(self.blocks) // 2
        if not half:
            return math.inf
        first, second = self.blocks[:half], self.blocks[half:]
        rates = [sum(s for _, s in part) / sum(n for n, _ in part) for part in (first, second)]
        return abs(math.log(rates[0] / rates[1])) if min(rates) > 0 else math.inf
