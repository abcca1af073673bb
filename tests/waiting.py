"""Wait for events in tests, never for a duration."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

HANG_S = float(os.environ.get("TEST_HANG_S", "180"))
"""A longer wait counts as a hang. No test depends on this number; it only ends a hanging run."""
_POLL_S = 0.01

Found = TypeVar("Found")


def until(probe: Callable[[], Found | None], what: str) -> Found:
    """Call `probe` until it returns a true value, and return that value.

    Args:
        probe: reads the state of another thread or process.
        what: the event, for the failure message: ``"worker-0 is registered"``.

    Raises:
        AssertionError: the test hangs.
    """
    pause, deadline = threading.Event(), time.monotonic() + HANG_S
    while not (found := probe()):
        assert time.monotonic() < deadline, f"waited {HANG_S:g} s for: {what}"
        pause.wait(_POLL_S)
    return found


def join(thread: threading.Thread, what: str = "") -> None:
    """Join a thread.

    Raises:
        AssertionError: the test hangs.
    """
    thread.join(HANG_S)
    assert not thread.is_alive(), f"waited {HANG_S:g} s for the end of thread {thread.name!r} {what}".rstrip()
