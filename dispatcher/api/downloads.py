"""Grouping of range requests into downloads, for the audit log. Pure except for the clock.

A client may fetch a file in many ranges, in any order. Requests of one user for one file count as one download if
pauses between them are at most 10 minutes. `files.Files` asks before it writes an audit entry. Remembers 10,000 pairs
of user and file in memory; after a restart a continued download counts again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

PAUSE_S = 600.0
"""Maximum pause in seconds between two requests of one download."""
_MAX_KNOWN = 10_000


class Downloads:
    """Recent downloads. Safe for several threads.

    Args:
        monotonic: seconds that never go back.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._newest_requests: OrderedDict[tuple[str, str], float] = OrderedDict()
        """(user, file) -> time of the newest request. A file's version is not part of the key, because logs grow."""

    def is_new(self, who: str, path: str, *, is_piece: bool) -> bool:
        """True if the request starts a download. A request for the whole file always does."""
        if not is_piece:
            return True
        key, now = (who, path), self._monotonic()
        with self._lock:
            last = self._newest_requests.pop(key, None)
            self._newest_requests[key] = now
            while len(self._newest_requests) > _MAX_KNOWN:
                self._newest_requests.popitem(last=False)
        return last is None or now - last > PAUSE_S
