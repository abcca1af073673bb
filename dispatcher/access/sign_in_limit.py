"""Delays for senders of wrong tokens. Counts failures per address and in total, in memory.

Only wrong tokens are counted and delayed. A right token is always let in, because behind a proxy all callers share one
address. So the limit bounds noise, and the length of the token bounds guessing: services warn of a short token at their
start (`cerebro.contract.identity.warning_of`). A restart forgets the counts.
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
        # Older failures do not matter: a full deque within the window delays everybody.
        self._failures: deque[tuple[float, str]] = deque(maxlen=IN_ALL)

    def failed(self, address: str) -> float:
        """Count a wrong token, unless its sender was asked to wait.

        Returns:
            Seconds that the sender is asked to wait; 0 if it may try again at once.
        """
        now = self._clock()
        with self._lock:
            everybody = [time for time, _ in self._failures]
            own = [time for time, by in self._failures if by == address]
            wait_s = max(_wait_s(own, PER_ADDRESS, now), _wait_s(everybody, IN_ALL, now))
            if not wait_s:
                self._failures.append((now, address))
        return wait_s


def _wait_s(failures: list[float], limit: int, now: float) -> float:
    return max(0.0, failures[-limit] + WINDOW_S - now) if len(failures) >= limit else 0.0
