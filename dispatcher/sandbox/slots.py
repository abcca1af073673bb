"""Limits on slow work: some requests work, some wait, and further ones are refused.

Used for child processes, reports and requests to workers. `pages.problems` and `api.views` answer 503 for a
`BusyError`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from cerebro.errors import ClusterError

_WAITING = 4
"""Number of waiting requests. A browser sends up to six at once: two work and four wait."""


class BusyError(ClusterError):
    """Too many requests of one kind; the caller retries."""


class Slots:
    """Lets `at_once` threads work and `waiting` more wait. Safe for several threads.

    Args:
        what: name of the work for the message, such as "checks".
    """

    def __init__(self, what: str, *, at_once: int, waiting: int = _WAITING) -> None:
        self._what = what
        self._slots = threading.BoundedSemaphore(at_once)
        self._admitted = threading.BoundedSemaphore(at_once + waiting)

    @contextmanager
    def taken(self, *, wait_s: float) -> Iterator[None]:
        """Hold a slot; wait up to `wait_s` for a free one.

        Raises:
            BusyError: no slot became free, or too many requests are waiting.
        """
        if not self._admitted.acquire(blocking=False):
            raise self._busy()
        try:
            if not self._slots.acquire(timeout=wait_s):
                raise self._busy()
            try:
                yield
            finally:
                self._slots.release()
        finally:
            self._admitted.release()

    def _busy(self) -> BusyError:
        return BusyError(f"the page is busy with other {self._what}: try again in a moment")
