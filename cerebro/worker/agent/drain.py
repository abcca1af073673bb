"""A worker's drain request: reason and grace period.

A signal or a newer process of the same name makes it once; the agent's threads read it to end running attempts and to
return waiting ones. Nothing here acts.
"""

from __future__ import annotations

import threading
import time


class Drain:
    """Drain request, shared by the agent's threads. Later requests are ignored.

    Attributes:
        why: who requested it and why, for people.
        is_superseded: True if a newer process has the worker's name and owns its tasks.
    """

    def __init__(self) -> None:
        self.why = ""
        self.is_superseded = False
        self._deadline = float("inf")
        self._requested = threading.Event()

    def request(self, why: str, grace_s: float, *, is_superseded: bool = False) -> None:
        """Request the end within `grace_s` seconds. Safe in a signal handler."""
        if self._requested.is_set():
            return
        self.why, self.is_superseded = why, is_superseded
        self._deadline = time.monotonic() + grace_s
        self._requested.set()

    @property
    def is_requested(self) -> bool:
        """True after a drain request."""
        return self._requested.is_set()

    @property
    def remaining_s(self) -> float:
        """Seconds until the running task is killed; infinite without a request."""
        return max(0.0, self._deadline - time.monotonic())

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for a drain request. Return False after `timeout_s`."""
        return self._requested.wait(timeout_s)
