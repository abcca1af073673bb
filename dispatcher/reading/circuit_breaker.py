"""Calls to the store by many threads, and since when it is away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from cerebro.errors import CerebroError, StoreUnavailableError
from dispatcher.reading.store import Store

T = TypeVar("T")

_PROBE_EVERY_S = 2.0
_PROBE_TAKES_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Outage:
    """The store does not answer since `since` (seconds since the epoch)."""

    since: float
    message: str


class CircuitBreaker:
    """Asks the store. Safe for several threads.

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

    def ask(self, call: Callable[[], T], *, is_command: bool = False) -> T:
        """`call` the store, keeping `outage` true.

        While the store is known to be away only one call at a time waits for it: the others fail at once,
        else a few open pages would occupy every thread with waiting. What a person has just asked for
        (`is_command`) is always tried.

        Raises:
            StoreUnavailableError: it does not answer.
        """
        began, outage = self._clock(), self.outage
        if outage and not is_command and self.monotonic() < self._probe_after:
            raise StoreUnavailableError(outage.message)
        self._probe_after = self.monotonic() + _PROBE_TAKES_S
        try:
            answer = call()
        except StoreUnavailableError as error:
            self.outage = Outage(since=outage.since if outage else began, message=str(error))
            self._probe_after = self.monotonic() + _PROBE_EVERY_S
            raise
        except CerebroError:
            self.outage = None  # a refusal is an answer
            raise
        self.outage = None
        return answer

    def now(self) -> float:
        """When what is shown was true: seconds since the epoch; during an outage, when it began."""
        outage = self.outage
        return outage.since if outage else self._clock()

    def probe(self) -> None:
        """Find out whether the store answers; the finding is `outage`."""
        try:
            self.ask(self.store.health, is_command=True)
        except StoreUnavailableError:
            pass
