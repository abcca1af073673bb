"""Looking at a volume, which may take long or for ever, without anybody waiting for it who must not."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

_AGAIN_S = 5.0
"""After a look that failed."""


class BackgroundQuery(Generic[T]):
    """The newest answer to a question, looked up by a thread of its own whenever somebody has asked. Safe for several
    threads; a look that hangs keeps that thread alone.

    Args:
        name: of the question, for the log.
        look: answers it.
    """

    def __init__(self, name: str, look: Callable[[], T]) -> None:
        self._name, self._look = name, look
        self._news = threading.Condition()
        self._asked = self._answered = 0
        self._answer: T | None = None
        self._thread: threading.Thread | None = None

    def ask(self) -> int:
        """Have it looked up anew, soon; returns the number of the question."""
        with self._news:
            self._asked += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"look-{self._name}", daemon=True)
                self._thread.start()
            self._news.notify_all()
            return self._asked

    def wait(self, number: int, timeout_s: float) -> bool:
        """Wait for an answer that is not older than the question of that number; whether there is one."""
        with self._news:
            return self._news.wait_for(lambda: self._answered >= number, timeout_s)

    def newest(self) -> tuple[int, T | None]:
        """The newest answer, with the number of the newest question that it answers; 0 and `None` before the first."""
        with self._news:
            return self._answered, self._answer

    def _run(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._asked > self._answered)
                number = self._asked
            try:
                answer = self._look()
            except Exception:
                # Whatever it is: the answer before is the newest that is known.
                log.exception("%s could not be looked at, and will be again", self._name)
                threading.Event().wait(_AGAIN_S)
                continue
            with self._news:
                self._answered, self._answer = number, answer
                self._news.notify_all()
