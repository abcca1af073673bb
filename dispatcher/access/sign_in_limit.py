"""Slows down guessing of the token: counts failures per address and over all addresses, in memory.

A restart forgets the counts; the token is long and random, so this bounds noise more than it bounds risk.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

WINDOW_S = 60.0
PER_ADDRESS = 5
IN_ALL = 100


class SignInLimiter:
    """Failures within the last `WINDOW_S` seconds of `clock`. Safe for several threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # Older ones say nothing: as many within the window stop everybody. Those that an address made good have none.
        self._failures: deque[tuple[float, str | None]] = deque(maxlen=IN_ALL)

    def wait_s(self, address: str) -> float:
        """Seconds until `address` may try again; 0 now."""
        now = self._clock()
        with self._lock:
            everybody = [time for time, _ in self._failures]
            own = [time for time, by in self._failures if by == address]
        return max(_wait_s(own, PER_ADDRESS, now), _wait_s(everybody, IN_ALL, now))

    def failed(self, address: str) -> None:
        """Count one failure."""
        with self._lock:
            self._failures.append((self._clock(), address))

    def succeeded(self, address: str) -> None:
        """Forget the failures of an address as its own. They still count for all: behind a proxy all have one."""
        with self._lock:
            kept = [(time, None if by == address else by) for time, by in self._failures]
            self._failures = deque(kept, maxlen=IN_ALL)


def _wait_s(failures: list[float], limit: int, now: float) -> float:
    return max(0.0, failures[-limit] + WINDOW_S - now) if len(failures) >= limit else 0.0
