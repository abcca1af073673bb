"""Queries that may block for long, such as to a network volume, run in a background thread.

A worker's `Reports`, `usage.volumes` and the dispatcher's pages keep one `BackgroundQuery` for each question to a
volume, and use its newest answer while the next one is pending. A hanging query keeps its thread: nothing cancels it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

_AGAIN_S = 5.0
"""Pause in seconds after a failed query."""


class BackgroundQuery(Generic[T]):
    """The newest answer to a query, which a background thread runs. Thread-safe.

    `request` starts the thread. It ends when all requests are answered, or after a failure. A hanging query blocks only
    this thread.

    Args:
        name: name of the query, for the log.
        query: returns the answer.
    """

    def __init__(self, name: str, query: Callable[[], T]) -> None:
        self._name, self._query = name, query
        self._news = threading.Condition()
        self._requested = self._answered = 0
        self._answer: T | None = None
        self._is_running = False
        self._paused_until = -math.inf

    def request(self) -> int:
        """Run the query soon; return the number of the request.

        Starts no query within `_AGAIN_S` after a failure.
        """
        with self._news:
            self._requested += 1
            if not self._is_running and time.monotonic() >= self._paused_until:
                self._is_running = True
                threading.Thread(target=self._run, name=f"query-{self._name}", daemon=True).start()
            return self._requested

    def wait(self, number: int, timeout_s: float) -> bool:
        """Wait for an answer to this or a later request. Return True if there is one."""
        with self._news:
            return self._news.wait_for(lambda: self._answered >= number, timeout_s)

    def newest(self) -> tuple[int, T | None]:
        """Return the number of the newest answered request, and the answer; 0 and `None` before the first."""
        with self._news:
            return self._answered, self._answer

    def _run(self) -> None:
        while True:
            with self._news:
                number = self._requested
            try:
                answer = self._query()
            except Exception:
                # After any failure, the previous answer remains the newest.
                log.exception("query of %s failed, and will be repeated", self._name)
                with self._news:
                    self._paused_until = time.monotonic() + _AGAIN_S
                    self._is_running = False
                return
            with self._news:
                self._answered, self._answer = number, answer
                self._news.notify_all()
                if self._requested == number:
                    self._is_running = False
                    return
