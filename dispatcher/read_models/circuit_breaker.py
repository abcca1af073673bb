"""Calls to the store from many threads, with detection of outages.

`Reader` derives from `CircuitBreaker`, so every call of a page goes through `call`. The first unanswered call starts
an outage. Then one call at a time is tried, at least 2 s after the last failure. Retries are in `KvsClient`, caches
in `Reader`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from cerebro.errors import CerebroError, StoreUnavailableError
from dispatcher.read_models.store import Store

T = TypeVar("T")

_PROBE_EVERY_S = 2.0
"""Seconds between a failed call and the next try during an outage."""
_PROBE_TAKES_S = 5.0
"""Seconds after which another call is tried although the last one has not ended."""


@dataclass(frozen=True, kw_only=True)
class Outage:
    """The store has not answered since `since` (seconds since the epoch)."""

    since: float
    message: str


class CircuitBreaker:
    """Calls the store. Safe for several threads.

    Args:
        store: the store.
        clock: seconds since the epoch.
        monotonic: seconds that never go back.
    """

    def __init__(self, store: Store, *, clock: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self.store = store
        self.outage: Outage | None = None
        self.monotonic = monotonic
        self._clock = clock
        self._probe_after = 0.0

    def call(self, function: Callable[[], T], *, is_command: bool = False) -> T:
        """Call `function` and update `outage`.

        During an outage only one call at a time waits for the store and the others fail at once. Otherwise a few
        open pages would occupy all threads. Commands of users (`is_command`) are always tried.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        began, outage = self._clock(), self.outage
        if outage and not is_command and self.monotonic() < self._probe_after:
            raise StoreUnavailableError(outage.message)
        self._probe_after = self.monotonic() + _PROBE_TAKES_S
        try:
            answer = function()
        except StoreUnavailableError as error:
            self.outage = Outage(since=outage.since if outage else began, message=str(error))
            self._probe_after = self.monotonic() + _PROBE_EVERY_S
            raise
        except CerebroError:
            self.outage = None  # a refusal is an answer, too
            raise
        self.outage = None
        return answer

    def now(self) -> float:
        """Return the time of the shown data: now, or the start of an outage. Seconds since the epoch."""
        outage = self.outage
        return outage.since if outage else self._clock()

    def probe(self) -> None:
        """Update `outage` by a call to the store."""
        try:
            self.call(self.store.health, is_command=True)
        except StoreUnavailableError:
            pass
