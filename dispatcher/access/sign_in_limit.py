"""Rate limit for wrong tokens: per minute 5 from one address and 100 in total, counted in memory.

`Guard` and `sign_in` call it after a wrong token only. A valid token is always accepted, because behind a proxy all
callers share one address. So the limit bounds noise, and the length of the token bounds guessing: services warn of a
short token at their start (`cerebro.contract.accounts.identity.warning_of`). A restart clears the counts.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

WINDOW_S = 60.0
PER_ADDRESS = 5
IN_ALL = 100
"""Maximum number of wrong tokens within `WINDOW_S` seconds, of all addresses."""


class SignInLimiter:
    """Failures within the last `WINDOW_S` seconds of `clock`. Safe for several threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # Older failures do not matter: a full deque within the window delays all senders.
        self._failures: deque[tuple[float, str]] = deque(maxlen=IN_ALL)

    def failed(self, address: str) -> float:
        """Count a wrong token, unless its sender is delayed already.

        Returns:
            Seconds that the sender has to wait; 0 if it may try again at once.
        """
        now = self._clock()
        with self._lock:
            total = [time for time, _ in self._failures]
            same_address = [time for time, by in self._failures if by == address]
            wait_s = max(_wait_s(same_address, PER_ADDRESS, now), _wait_s(total, IN_ALL, now))
            if not wait_s:
                self._failures.append((now, address))
        return wait_s


def _wait_s(failures: list[float], limit: int, now: float) -> float:
    return max(0.0, failures[-limit] + WINDOW_S - now) if len(failures) >= limit else 0.0
