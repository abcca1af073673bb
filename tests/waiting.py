"""Waits of tests: for an event, never for a duration."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

HANG_S = float(os.environ.get("TEST_HANG_S", "180"))
"""A wait that takes longer hangs. No test depends on this number: it only ends a run that would never end."""
_POLL_S = 0.01

Found = TypeVar("Found")


def until(probe: Callable[[], Found | None], what: str) -> Found:
    """Call `probe` until it returns something true, and return that.

    Args:
        probe: looks at another thread or process.
        what: the event, for the failure: ``"worker-0 is registered"``.

    Raises:
        AssertionError: the test hangs.
    """
    pause, deadline = threading.Event(), time.monotonic() + HANG_S
    while not (found := probe()):
        assert time.monotonic() < deadline, f"waited {HANG_S:g} s for: {what}"
        pause.wait(_POLL_S)
    return found


def join(thread: threading.Thread, what: str = "") -> None:
    """Wait until a thread has ended.

    Raises:
        AssertionError: the test hangs.
    """
    thread.join(HANG_S)
    assert not thread.is_alive(), f"waited {HANG_S:g} s for the end of thread {thread.name!r} {what}".rstrip()
