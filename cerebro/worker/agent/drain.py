"""The request that a worker ends: why, and how long it may take. Said once, by a signal or by a newer process."""

from __future__ import annotations

import threading
import time


class Drain:
    """Shared by all threads of an agent. What was said first counts.

    Attributes:
        why: who asked and for what, for people.
        is_superseded: whether a newer process has the worker's name: what runs here is not ours any more.
    """

    def __init__(self) -> None:
        self.why = ""
        self.is_superseded = False
        self._deadline = float("inf")
        self._asked = threading.Event()

    def ask(self, why: str, grace_s: float, *, is_superseded: bool = False) -> None:
        """Want the end within `grace_s` seconds. Safe in a signal handler."""
        if self._asked.is_set():
            return
        self.why, self.is_superseded = why, is_superseded
        self._deadline = time.monotonic() + grace_s
        self._asked.set()

    @property
    def is_asked(self) -> bool:
        """Whether the worker is to end."""
        return self._asked.is_set()

    @property
    def left_s(self) -> float:
        """Seconds until the running task is ended by force; infinite while nobody asked."""
        return max(0.0, self._deadline - time.monotonic())

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the end is wanted; false when `timeout_s` has passed."""
        return self._asked.wait(timeout_s)
