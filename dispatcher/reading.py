"""Reads the store for the pages: folds event logs, keeps what it folded, and remembers since when the store
is away.

Pages show the last good data while the store does not answer, so everything read is kept, within bounds:
folded logs up to `_MAX_EVENTS` events in all. Only the log is believed; nothing here decides anything.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from cerebro.contract.records import ExperimentRecord, ExperimentSummary, WorkerStatus
from cerebro.errors import NotFoundError, StoreUnavailableError
from cerebro.state import ExperimentState
from dispatcher.store import EVENTS_PER_READ, Store

T = TypeVar("T")

_MAX_EVENTS = 30_000  # about 1.5 KiB each once folded
_PROBE_EVERY_S = 2.0
_PROBE_TAKES_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Outage:
    """The store does not answer since `since` (seconds since the epoch)."""

    since: float
    message: str


@dataclass(kw_only=True)
class _Log:
    record: ExperimentRecord
    state: ExperimentState
    was_read: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class Reader:
    """All reads of the pages. Safe for several threads.

    Args:
        store: the store.
        clock: seconds since the epoch.
        monotonic: seconds that never go back.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self.outage: Outage | None = None
        self._clock = clock
        self.monotonic = monotonic
        self._probe_after = 0.0
        self._lock = threading.Lock()
        self._logs: OrderedDict[str, _Log] = OrderedDict()
        self._summaries: tuple[ExperimentSummary, ...] | None = None
        self._workers: tuple[WorkerStatus, ...] | None = None

    def ask(self, call: Callable[[], T], *, is_wish: bool = False) -> T:
        """`call` the store, keeping `outage` true.

        While the store is known to be away only one call at a time waits for it: the others fail at once,
        else a few open pages would occupy every thread with waiting. What a person has just asked for
        (`is_wish`) is always tried.

        Raises:
            StoreUnavailableError: it does not answer.
        """
        began, outage = self._clock(), self.outage
        if outage and not is_wish and self.monotonic() < self._probe_after:
            raise StoreUnavailableError(outage.message)
        self._probe_after = self.monotonic() + _PROBE_TAKES_S
        try:
            answer = call()
        except StoreUnavailableError as error:
            self.outage = Outage(since=outage.since if outage else began, message=str(error))
            self._probe_after = self.monotonic() + _PROBE_EVERY_S
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
            self.ask(self.store.health, is_wish=True)
        except StoreUnavailableError:
            pass

    def summaries(self) -> tuple[ExperimentSummary, ...]:
        """All experiments, newest event first; the last good list during an outage."""
        try:
            self._summaries = self.ask(self.store.experiments)
        except StoreUnavailableError:
            if self._summaries is None:
                raise
        return self._summaries

    def workers(self) -> tuple[WorkerStatus, ...]:
        """All workers; the last good list, or none, during an outage."""
        try:
            self._workers = self.ask(self.store.workers)
        except StoreUnavailableError:
            pass
        return self._workers or ()

    def record(self, name: str) -> ExperimentRecord:
        """One experiment; the last good record during an outage.

        Raises:
            NotFoundError: there is none.
        """
        try:
            return self.ask(lambda: self.store.experiment(name))
        except StoreUnavailableError:
            log = self._logs.get(name)
            if log is None:
                raise
            return log.record
        except NotFoundError:
            with self._lock:
                self._logs.pop(name, None)
            raise

    def folded(
        self, record: ExperimentRecord, build: Callable[[ExperimentState, bool], T], *, patience_s: float
    ) -> T:
        """``build(state, is_complete)`` on the folded log; the state must not be kept.

        A long log is read for at most about `patience_s` and goes on at the next call: `is_complete` is
        false then.

        Raises:
            IllegalEventError: the log does not fit this program.
            StoreUnavailableError: the store is away and this log was never read.
        """
        log = self._log(record)
        with log.lock:
            try:
                is_complete = self._catch_up(log, self.monotonic() + patience_s)
            except StoreUnavailableError:
                if not log.was_read:
                    raise
                is_complete = True
            return build(log.state, is_complete)

    def _catch_up(self, log: _Log, deadline: float) -> bool:
        while True:
            events = self.ask(lambda: self.store.events(log.record.name, after=log.state.seq))
            for event in events:
                log.state.apply(event)
            log.was_read = True
            if len(events) < EVENTS_PER_READ:
                return True
            if self.monotonic() >= deadline:
                return False

    def _log(self, record: ExperimentRecord) -> _Log:
        with self._lock:
            log = self._logs.pop(record.name, None)
            if log is None or log.record != record:  # a store that was emptied may hold the name again
                log = _Log(record=record, state=ExperimentState(name=record.name))
            self._logs[record.name] = log
            kept = sum(other.state.seq for other in self._logs.values())
            while kept > _MAX_EVENTS and len(self._logs) > 1:
                _, oldest = self._logs.popitem(last=False)
                kept -= oldest.state.seq
            return log
