"""Scale to zero and scale up: release unused workers, and request them again for a run.

No I/O; keeps state; not thread-safe. `controller.scaling.worker_set_size` owns it, calls `update` in each round and
makes the requests. A cluster is unused if no run is open, except paused ones. After `ScaleToZeroRules.idle_s` (half
an hour) all but the minimum of workers are released. Their volumes stay, so no data is rebuilt. While a run is paused
for a full disk, one worker stays or returns to report free space. An open run brings back the previous number.

A number chosen by a person holds for an hour. A choice of zero holds until a later run is requested or
resumed, because that is the newer intention.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from controller.scaling.autoscaler.policy import HOLD_S
from controller.scaling.autoscaler.use import Use


@dataclass(frozen=True, kw_only=True)
class ScaleToZeroRules:
    """Settings of scale to zero.

    Attributes:
        is_on: True if enabled.
        idle_s: seconds without use before workers are released.
        least: workers that stay.
        most: maximum number of workers; 0 if unknown.
    """

    is_on: bool = False
    idle_s: float = 1800.0
    least: int = 1
    most: int = 0


class DesiredSize(NamedTuple):
    """A number of workers to request, and the reason for people."""

    workers: int
    reason: str


class ScaleToZero:
    """The state of scale to zero.

    Attributes:
        previous_size: workers before the release; 0 if none were released.
    """

    def __init__(self, rules: ScaleToZeroRules, *, previous_size: int = 0) -> None:
        self._rules, self.previous_size = rules, previous_size
        self._idle_since: float | None = None
        self._last = 0
        """The newest requested number above zero."""
        self._disk_full_size = 0
        """Workers kept or brought back for a run paused for a full disk."""
        self._is_down = True
        """True after the cluster manager has adopted the size of the last release."""

    def update(
        self,
        now: float,
        *,
        size: int,
        use: Use,
        is_awaited: bool = False,
        chosen_at: float = -math.inf,
        scaled_to_zero_at: float = -math.inf,
        bounds: tuple[int, int] | None = None,
        stalled: tuple[int, str] | None = None,
    ) -> DesiredSize | None:
        """Return the number of workers to request now, or `None` for no change.

        Args:
            now: seconds.
            size: workers requested from the cluster manager.
            use: demand of the runs.
            is_awaited: True while requested workers are starting.
            chosen_at: time of a person's last choice of a number; minus infinity without one.
            scaled_to_zero_at: time of a person's choice of zero; minus infinity without one.
            bounds: minimum and maximum that the runs request.
            stalled: number of workers to accept, and the reason, if the others find no node.
        """
        self._disk_full_size = 1 if use.is_full else self._disk_full_size
        self._remember(size, is_awaited=is_awaited)
        if not self._rules.is_on:
            return None
        is_shut = not size and use.wished_at <= scaled_to_zero_at
        if not use.is_used:
            if use.is_full and not size and not is_shut:
                return DesiredSize(1, "a run waits for free space")
            return self._idle(now, size, chosen_at, least=max(self._rules.least, int(use.is_full)))
        self._idle_since = None
        if is_shut or not use.is_sure:
            return None
        if self.previous_size and not self.is_scaling_up(size):
            return self._scale_up(size, bounds)
        if stalled is not None and now - chosen_at >= HOLD_S and (content := max(stalled[0], 1)) < size:
            return DesiredSize(content, stalled[1])
        return None

    def is_scaling_up(self, size: int) -> bool:
        """True if released workers are requested again and not all present."""
        return self.previous_size > 0 and self._is_down and not self._is_scaled_down(size)

    def _is_scaled_down(self, size: int) -> bool:
        return size == 0 or (size < self.previous_size and size in (self._rules.least, self._disk_full_size))

    def _remember(self, size: int, *, is_awaited: bool) -> None:
        """Update the state after a change, by any author."""
        is_another = not self._is_down and size != self.previous_size  # another author chose it
        self._is_down |= self._is_scaled_down(size)
        if (self.is_scaling_up(size) or (is_another and not self._is_down)) and not is_awaited:
            self.previous_size, self._disk_full_size, self._is_down = 0, 0, True
        if not size and not self.previous_size:
            self.previous_size = self._last  # by any author: a run scales up again
        self._last = size or self._last

    def _idle(self, now: float, size: int, chosen_at: float, *, least: int) -> DesiredSize | None:
        if self._idle_since is None:
            self._idle_since = now
        idle_s = now - self._idle_since
        if size <= least or idle_s < self._rules.idle_s or now - chosen_at < HOLD_S:
            return None
        self.previous_size, self._is_down = size, False
        return DesiredSize(least, f"no run for {idle_s / 60:.0f} min")

    def _scale_up(self, size: int, bounds: tuple[int, int] | None) -> DesiredSize | None:
        wanted = self.previous_size
        if bounds is not None:
            wanted = min(max(wanted, bounds[0]), bounds[1])
        if self._rules.most:
            wanted = min(wanted, self._rules.most)
        return DesiredSize(wanted, "a run is requested") if wanted > size else None

    def status_text(self, size: int) -> str:
        """Return the status for people while workers are released, else ""."""
        if not self._rules.is_on:
            return "" if size else "no workers are wanted: `cerebro scale --workers N` has them start"
        if not self.previous_size or self.is_scaling_up(size):
            return ""
        worker_count = (
            f"{size} of {self.previous_size} workers" if size else f"none of {self.previous_size} workers"
        )
        return f"the cluster is scaled down to {worker_count}; a run scales it up"
