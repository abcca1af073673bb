"""Views that need older pages of a long log, read without the read model's lock.

The fold of a long run keeps only newer sub-epochs. A view function returns `FromLog` if its time range starts
earlier; the page or `api.views` then calls `resolve` with `Services.past`, which reads the store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from cerebro.contract.events import Event
from cerebro.contract.stored.segments import SegmentsAnswer
from cerebro.state.log_pages import LogPages
from dispatcher.read_models.reader import Reader

T = TypeVar("T")


@dataclass(frozen=True)
class FromLog(Generic[T]):
    """A view that needs pages of the log. `make` uses immutable data only, so it runs without the lock."""

    make: Callable[[LogPages], T]


def resolve(found: T | FromLog[T], pages: LogPages) -> T:
    """Return the view itself."""
    return found.make(pages) if isinstance(found, FromLog) else found


class PastStore:
    """The store as `LogPages` uses it, through the circuit breaker."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def events(self, experiment: str, after: int = 0) -> Sequence[Event]:
        """See `cerebro.runtime.kvs.client.KvsClient`."""
        return self._reader.call(lambda: self._reader.store.events(experiment, after))

    def segments(self, experiment: str) -> SegmentsAnswer:
        """See `cerebro.runtime.kvs.segment_calls.SegmentCalls`."""
        return self._reader.call(lambda: self._reader.store.segments(experiment))
