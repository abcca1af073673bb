"""A cached answer of the store, shared by all viewers.

`Reader` has one for each list of the whole cluster: experiments, workers, queue. Logs are not cached here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from cerebro.errors import StoreUnavailableError
from dispatcher.read_models.circuit_breaker import CircuitBreaker

T = TypeVar("T")

_WAIT_S = 0.5
"""Maximum seconds that a request with an older answer waits for another request's call."""


class CachedAnswer(Generic[T]):
    """The newest answer of one call. Safe for several threads.

    Args:
        breaker: calls the store.
        call: function that returns the answer.
        fresh_s: seconds until the call is repeated.
        share: maximum fraction of time spent on the call, so slow calls are repeated less often.
        shown: returns the part of an answer that pages show; `version` increases when it changes.
        absent: answer while the store is away and never answered. Default: raise the error.
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
        self._calling = threading.Lock()
        self._answer: T | None = None
        self._until = float("-inf")
        self._version = 0

    def __call__(self) -> T:
        """Return the newest answer; during an outage the last good one.

        Raises:
            StoreUnavailableError: the store is away and never answered.
        """
        known = self._answer
        if not self._calling.acquire(timeout=-1 if known is None else _WAIT_S):
            assert known is not None
            return known
        try:
            known, began = self._answer, self._breaker.monotonic()
            if known is not None and began < self._until:
                return known
            answer = self._breaker.call(self._call)
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
            self._calling.release()

    def invalidate(self) -> None:
        """Repeat the call at the next access."""
        self._until = float("-inf")

    def version(self) -> int:
        """Return the version of the newest answer. It increases when the shown part changes.

        Raises:
            StoreUnavailableError: the store is away and never answered.
        """
        self()
        return self._version
