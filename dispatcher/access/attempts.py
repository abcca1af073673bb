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
_MAX_ADDRESSES = 1000


class Attempts:
    """Failures within the last `WINDOW_S` seconds of `clock`. Safe for several threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures: dict[str, deque[float]] = {}
        self._all: deque[float] = deque(maxlen=IN_ALL)

    def wait_s(self, address: str) -> float:
        """Seconds until `address` may try again; 0 now."""
        now = self._clock()
        with self._lock:
            own = self._failures.get(address, deque())
            return max(_wait_s(own, PER_ADDRESS, now), _wait_s(self._all, IN_ALL, now))

    def failed(self, address: str) -> None:
        """Count one failure."""
        now = self._clock()
        with self._lock:
            if address not in self._failures and len(self._failures) >= _MAX_ADDRESSES:
                self._failures.pop(next(iter(self._failures)))
            self._failures.setdefault(address, deque(maxlen=PER_ADDRESS)).append(now)
            self._all.append(now)

    def succeeded(self, address: str) -> None:
        """Forget the failures of an address."""
        with self._lock:
            self._failures.pop(address, None)


def _wait_s(failures: deque[float], limit: int, now: float) -> float:
    return max(0.0, failures[0] + WINDOW_S - now) if len(failures) >= limit else 0.0
