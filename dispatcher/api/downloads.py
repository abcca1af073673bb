"""Which answers with files are downloads: each one once, in however many pieces it is fetched. Pure but for the clock.

A client that fetches a file in ranges asks many times, in any order, and perhaps never for its beginning. So what
counts is who asks for which file: as long as the pieces come, they are one download.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

PAUSE_S = 600.0
"""Pieces of one download come without a longer pause; what comes later begins another one."""
_MAX_KNOWN = 10_000


class Downloads:
    """Safe for several threads.

    Args:
        monotonic: seconds that never go back.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._begun: OrderedDict[tuple[str, str], float] = OrderedDict()
        """Who, which file -> when the newest piece was asked for. Not its version: a log grows while it is followed."""

    def is_new(self, who: str, path: str, *, is_piece: bool) -> bool:
        """Whether a download begins. A whole file is one each time that it is sent."""
        if not is_piece:
            return True
        key, now = (who, path), self._monotonic()
        with self._lock:
            before = self._begun.pop(key, None)
            self._begun[key] = now
            while len(self._begun) > _MAX_KNOWN:
                self._begun.popitem(last=False)
        return before is None or now - before > PAUSE_S
