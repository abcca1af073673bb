"""Looking at a volume, which may take long or for ever, without anybody waiting for it who must not."""

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
"""After a look that failed."""


class BackgroundQuery(Generic[T]):
    """The newest answer to a question, which a background thread looks up.

    `ask` starts the thread. It ends once all questions are answered, or after a look that failed. A look that hangs
    blocks only this thread. Safe for several threads.

    Args:
        name: of the question, for the log.
        look: answers it.
    """

    def __init__(self, name: str, look: Callable[[], T]) -> None:
        self._name, self._query = name, look
        self._news = threading.Condition()
        self._requested = self._answered = 0
        self._answer: T | None = None
        self._is_running = False
        self._paused_until = -math.inf

    def request(self) -> int:
        """Start a new look soon, and return the number of the question.

        For some seconds after a failed look this starts none: ask again later.
        """
        with self._news:
            self._requested += 1
            if not self._is_running and time.monotonic() >= self._paused_until:
                self._is_running = True
                threading.Thread(target=self._run, name=f"look-{self._name}", daemon=True).start()
            return self._requested

    def wait(self, number: int, timeout_s: float) -> bool:
        """Wait for an answer to this or a later request. Return True if there is one."""
        with self._news:
            return self._news.wait_for(lambda: self._answered >= number, timeout_s)

    def newest(self) -> tuple[int, T | None]:
        """The newest answer, with the number of the newest question that it answers; 0 and `None` before the first."""
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
                log.exception("%s could not be looked at, and will be again", self._name)
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
