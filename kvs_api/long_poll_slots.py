"""How many requests may wait for news at once: every one that waits holds a thread that others need.

Leases are renewed, tasks decided and probes answered in what is left, however many readers there are.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_RESERVE = 16
"""Threads that no waiting request may hold, where there are so many."""


def most_waiting(threads: int) -> int:
    """How many of so many threads may wait for news: all but 16, and at least half of them."""
    return max(threads - _RESERVE, (threads + 1) // 2)


class LongPollSlots:
    """LongPollSlots of readers that wait for news; shared by all threads of a service.

    Args:
        threads: requests served at once.
    """

    def __init__(self, threads: int) -> None:
        most = most_waiting(threads)
        self._slots = threading.BoundedSemaphore(most)
        # Who waits for a slot holds a thread, too: half of the others stay free in any case.
        self._queue = threading.BoundedSemaphore((threads - most) // 2)
        self._counting = threading.Lock()
        self.held = 0
        """Readers that wait for news now."""

    @contextmanager
    def slot(self, timeout_s: float) -> Iterator[bool]:
        """Hold a slot, if one is free within `timeout_s` seconds; whether it is held.

        Does not wait where too many wait for a slot already.
        """
        is_held = self._slots.acquire(blocking=False) or self._await(timeout_s)
        self._count(int(is_held))
        try:
            yield is_held
        finally:
            self._count(-int(is_held))
            if is_held:
                self._slots.release()

    def _count(self, change: int) -> None:
        with self._counting:
            self.held += change

    def _await(self, timeout_s: float) -> bool:
        if not self._queue.acquire(blocking=False):
            return False
        try:
            return self._slots.acquire(timeout=timeout_s)
        finally:
            self._queue.release()
