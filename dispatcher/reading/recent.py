"""A list of the store, asked for once in a while however many look."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from cerebro.errors import StoreUnavailableError
from dispatcher.reading.circuit_breaker import CircuitBreaker

T = TypeVar("T")

_WAIT_S = 0.5
"""How long a request that has something to show waits for another one that asks: a store that hangs must not hang
everybody."""


class Recent(Generic[T]):
    """The newest answer to one question. Safe for several threads.

    Args:
        breaker: asks the store.
        call: the question.
        fresh_s: how long an answer is used before there is another question.
        share: of the time, at most, that is spent on asking: what takes long is asked more rarely.
        shown: what pages show of an answer; `version` grows whenever that differs.
        absent: what is answered while the store is away and never answered; if left out that is an error.
    """

    def __init__(
        self,
        breaker: CircuitBreaker,
        call: Callable[[], T],
        *,
        fresh_s: float,
        share: float = 1.0,
        shown: Callable[[T], object] = lambda answer: answer,
        absent: T | None = None,
    ) -> None:
        self._breaker, self._call, self._shown = breaker, call, shown
        self._fresh_s, self._share, self._absent = fresh_s, share, absent
        self._asking = threading.Lock()
        self._answer: T | None = None
        self._until = float("-inf")
        self._version = 0

    def __call__(self) -> T:
        """The newest answer; the last good one during an outage, or for a moment.

        Raises:
            StoreUnavailableError: the store is away and never answered.
        """
        known = self._answer
        if not self._asking.acquire(timeout=-1 if known is None else _WAIT_S):
            assert known is not None
            return known
        try:
            known, began = self._answer, self._breaker.monotonic()
            if known is not None and began < self._until:
                return known
            answer = self._breaker.ask(self._call)
            took_s = self._breaker.monotonic() - began
            self._until = began + max(self._fresh_s, took_s / self._share)
            self._version += known is None or self._shown(answer) != self._shown(known)
            self._answer = answer
            return answer
        except StoreUnavailableError:
            found = self._absent if known is None else known
            if found is None:
                raise
            return found
        finally:
            self._asking.release()

    def expect_news(self) -> None:
        """Ask anew when next somebody wants to know."""
        self._until = float("-inf")

    def version(self) -> int:
        """Of the newest answer: grows whenever what is shown of it differs.

        Raises:
            StoreUnavailableError: the store is away and never answered.
        """
        self()
        return self._version
