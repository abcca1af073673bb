"""What a view cannot tell from the fold alone: the older part of a long log is read for it, once nobody waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from cerebro.contract.events import Event
from cerebro.contract.segments import SegmentsAnswer
from cerebro.state.log_pages import LogPages
from dispatcher.reading.reader import Reader

T = TypeVar("T")


@dataclass(frozen=True)
class FromLog(Generic[T]):
    """A view that is made with pages of the log, of nothing that changes: whoever makes it need not hold the
    experiment."""

    make: Callable[[LogPages], T]


def made(found: T | FromLog[T], pages: LogPages) -> T:
    """The view itself."""
    return found.make(pages) if isinstance(found, FromLog) else found


class PastStore:
    """The store as `LogPages` asks it: an outage is one for all pages."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def events(self, experiment: str, after: int = 0) -> Sequence[Event]:
        """See `cerebro.runtime.kvs.KvsClient`."""
        return self._reader.ask(lambda: self._reader.store.events(experiment, after))

    def segments(self, experiment: str) -> SegmentsAnswer:
        """See `cerebro.runtime.segment_calls.SegmentCalls`."""
        return self._reader.ask(lambda: self._reader.store.segments(experiment))
