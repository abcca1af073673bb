"""Reader of the store: follows event logs and live points for all pages.

It reads only; commands of users pass through its `call`, without a cache. While the store is away pages show the last
good data, so everything is cached: read models with up to `_MAX_EVENTS` events in total (a live point counts an
eighth), the least recently used are dropped. All viewers share one read of an experiment per 0.5 s (`FRESH_S`).
`Services.reader` is the only instance.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from cerebro.contract.records import ExperimentRecord, WorkerStatus
from cerebro.contract.rest.api import QueueAnswer
from cerebro.errors import IllegalEventError, NotFoundError, StoreUnavailableError, UnreadableError
from cerebro.state import QueuePosition, queue_positions
from cerebro.state.snapshots import restored
from dispatcher.read_models.background import Background
from dispatcher.read_models.cached_answer import CachedAnswer
from dispatcher.read_models.circuit_breaker import CircuitBreaker
from dispatcher.read_models.read_model import ReadModel
from dispatcher.read_models.store import ENTRIES_PER_READ, Store

T = TypeVar("T")

FRESH_S = 0.5
"""Seconds until data is read again."""
WORKERS_S = 2.0
"""Seconds until the list of workers is read again. Logs have the tasks of workers; this list only their health."""
READING_S = 2.0
"""Maximum seconds that a page waits for a log that is not cached."""

_RECORD_S = 5.0
"""Seconds until a record is read again. Records never change, but a deleted experiment's name may be reused."""
_SUMMARIES_SHARE = 0.03
"""Maximum fraction of time for reading the list of experiments, which is slow with thousands."""
_MAX_EVENTS = 250_000
"""A folded event takes half a kilobyte, including the rows of models."""
_EVENTS_PER_LOCK = 200
"""Number of events to fold under the lock at once: some milliseconds, during which no page is built."""
_READING_S = 0.5
"""Maximum seconds that a request waits for another request that reads the same log."""
_WAITERS = 8
"""Maximum number of requests that wait for long logs. Further requests show older data."""


@dataclass(kw_only=True)
class _Log:
    read_model: ReadModel
    recorded_at: float
    """Time of reading the record."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while `read_model` is used."""
    reading: threading.Lock = field(default_factory=threading.Lock)
    """Held while reading the store for it."""
    is_begun: bool = False
    """True if the newest snapshot of its fold was requested."""
    was_read: bool = False
    read_at: float = float("-inf")
    """Start time of the newest read up to the log's end."""
    live_at: float = float("-inf")
    """Start time of the newest read of live points."""
    caught_up: threading.Event = field(default_factory=threading.Event)


@contextmanager
def _discard_torn_state(log: _Log) -> Iterator[None]:
    """Never show a state with a partly applied event."""
    try:
        yield
    except BaseException as error:
        if log.read_model.state.torn:
            log.was_read, log.read_at, log.live_at = False, float("-inf"), float("-inf")
            if not isinstance(error, IllegalEventError):  # the event itself is valid
                log.read_model = ReadModel(log.read_model.record)
                log.is_begun = False
        raise


class Reader(CircuitBreaker):
    """Cached reads for all pages. Safe for several threads.

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
        super().__init__(store, clock=clock, monotonic=monotonic)
        self.background = Background(monotonic)
        self._lock = threading.Lock()
        self._waiters = threading.BoundedSemaphore(_WAITERS)
        self._logs: OrderedDict[str, _Log] = OrderedDict()
        # Look up methods at each call, because tests replace them.
        self.summaries = CachedAnswer(
            self,
            lambda: store.experiments(),  # noqa: PLW0108
            fresh_s=FRESH_S,
            share=_SUMMARIES_SHARE,
        )
        """All experiments, newest event first."""
        self.workers = CachedAnswer[tuple[WorkerStatus, ...]](
            self,
            lambda: store.workers(),  # noqa: PLW0108
            fresh_s=WORKERS_S,
            shown=lambda found: list(map(_visible_state, found)),
            absent=(),
        )
        """All workers; an empty tuple if the store is away and never answered."""
        self.queue = CachedAnswer(
            self,
            lambda: store.queued(),  # noqa: PLW0108
            fresh_s=WORKERS_S,
            absent=QueueAnswer(runs=()),
        )
        """Open runs; an empty queue if the store is away and never answered."""

    def queue_positions(self, experiment: str) -> tuple[QueuePosition, ...]:
        """Return the queue positions of an experiment's open runs."""
        return tuple(each for each in queue_positions(self.queue()) if each.experiment == experiment)

    # --- one experiment --------------------------------------------------------------------------

    def record(self, name: str) -> ExperimentRecord:
        """Return an experiment's record; the last good one during an outage.

        Raises:
            NotFoundError: the experiment does not exist.
        """
        return self._log_of(name).read_model.record

    def read(self, name: str, build: Callable[[ReadModel], T], *, timeout_s: float = READING_S) -> T:
        """Return ``build(read_model)`` for an experiment's current state. `build` must not keep the read model.

        Waits up to about `timeout_s` for a long log. After that `build` gets the state so far, with a false
        `ReadModel.is_complete`.

        Raises:
            NotFoundError: the experiment does not exist.
            IllegalEventError: this version cannot read the log.
            StoreUnavailableError: the store is away and the log was never read.
        """
        log = self._log_of(name)
        self._refresh(log, timeout_s, is_live=True)
        with log.lock:
            return build(log.read_model)

    def version(self, name: str) -> tuple[object, ...]:
        """Return a value that changes whenever `read` would return something else. Raises the errors of `read`."""
        log = self._log_of(name)
        self._refresh(log, 0.0, is_live=True)
        return *log.read_model.version(self.now()), self.outage is not None

    def read_log(self, record: ExperimentRecord, build: Callable[[ReadModel], T], *, timeout_s: float) -> T:
        """Return ``build(read_model)`` for the log without live points; see `read`. `record` may be outdated.

        Raises:
            NotFoundError: the experiment was deleted and its name reused.
        """
        log = self._entry(record, is_newest=False)
        self._refresh(log, timeout_s, is_live=False)
        with log.lock:
            return build(log.read_model)

    def readable_part(self, name: str, build: Callable[[ReadModel], T]) -> T | None:
        """Return ``build(read_model)`` for the events before an unreadable one; `None` if there are none."""
        with self._lock:
            log = self._logs.get(name)
        if log is None:
            return None
        with log.lock:
            return None if log.read_model.state.torn else build(log.read_model)

    def read_separately(self, name: str) -> ReadModel:
        """Return a separate fold of an experiment's log, for slow work without the lock.

        Raises:
            NotFoundError: the experiment does not exist.
            IllegalEventError: this version cannot read the log.
            StoreUnavailableError: the store is away.
        """
        found = self.from_snapshot(self.record(name))
        while not found.is_complete:
            events = self.call(lambda: self.store.events(name, after=found.state.seq))
            found.apply(events)
            found.is_complete = len(events) < ENTRIES_PER_READ
        return found

    def _log_of(self, name: str) -> _Log:
        with self._lock:
            log = self._logs.get(name)
            if log is not None:
                self._logs.move_to_end(name)
        if log is not None and self.monotonic() < log.recorded_at + _RECORD_S:
            return log
        try:
            return self._entry(self.call(lambda: self.store.experiment(name)), is_newest=True)
        except StoreUnavailableError:
            if log is None:
                raise
            return log
        except NotFoundError:
            with self._lock:
                self._logs.pop(name, None)
            raise

    def _entry(self, record: ExperimentRecord, *, is_newest: bool) -> _Log:
        with self._lock:
            log = self._logs.get(record.name)
            if log is None or log.read_model.record != record:  # the name may have been reused
                if log is not None and not is_newest and record.created < log.read_model.record.created:
                    raise NotFoundError(f"the experiment {record.name!r} was deleted")
                log = self._logs[record.name] = _Log(read_model=ReadModel(record), recorded_at=float("-inf"))
            if is_newest:
                log.recorded_at = self.monotonic()
            self._logs.move_to_end(record.name)
            return log

    def invalidate(self, name: str) -> None:
        """Read an experiment's log and the lists again at the next access."""
        with self._lock:
            log = self._logs.get(name)
            if log is not None:
                log.read_at = float("-inf")
        self.summaries.invalidate()
        self.queue.invalidate()

    def _trim(self) -> None:
        """Drop the least recently used logs."""
        with self._lock:
            total = sum(log.read_model.weight for log in self._logs.values())
            while total > _MAX_EVENTS and len(self._logs) > 1:
                _, oldest = self._logs.popitem(last=False)
                total -= oldest.read_model.weight

    def _refresh(self, log: _Log, timeout_s: float, *, is_live: bool) -> None:
        """Read new events if the data is old. After `timeout_s` the background continues a long log."""
        if self._is_fresh(log, is_live):
            return
        key = ("log", log.read_model.record.name, log.read_model.record.created)
        if self.background.has(key):
            self._wait(log, timeout_s)
            return
        if not log.reading.acquire(timeout=_READING_S if log.was_read else -1):
            return  # a store that hangs must not block all requests: show older data
        try:
            if self._is_fresh(log, is_live):
                return  # another thread read it
            is_done = self._read(log, self.monotonic() + timeout_s, is_live=is_live)
        except StoreUnavailableError:
            if not log.was_read:
                raise
            return
        finally:
            log.reading.release()
        self._trim()
        if not is_done:
            log.caught_up.clear()
            self.background.submit(key, lambda: self._catch_up(log))

    def _is_fresh(self, log: _Log, is_live: bool) -> bool:
        oldest = self.monotonic() - FRESH_S
        return log.read_at > oldest and (not is_live or log.live_at > oldest)

    def from_snapshot(self, record: ExperimentRecord) -> ReadModel:
        """Return a read model from the newest snapshot of an experiment's fold, or an empty one."""
        return ReadModel(record, self.call(lambda: restored(self.store, record.name)))

    def _wait(self, log: _Log, timeout_s: float) -> None:
        if timeout_s > 0 and self._waiters.acquire(blocking=False):
            try:
                log.caught_up.wait(timeout_s)
            finally:
                self._waiters.release()

    def _catch_up(self, log: _Log) -> bool:
        """Execute one background step. Returns True when the log is read."""
        with self._lock:
            if self._logs.get(log.read_model.record.name) is not log:
                return True  # it was dropped because others were used since
        with log.reading:
            is_done = self._read(log, self.monotonic(), is_live=True)
        self._trim()
        if is_done:
            log.caught_up.set()
        return is_done

    def _read(self, log: _Log, deadline: float, *, is_live: bool) -> bool:
        """Read at least one page, until the end or the deadline. Returns True at the end. Requires `log.reading`."""
        if not log.is_begun:
            restored_model = self.from_snapshot(log.read_model.record)
            with log.lock:
                if restored_model.state.seq > log.read_model.state.seq:
                    log.read_model = restored_model
            log.is_begun = True
        name, read_model = log.read_model.record.name, log.read_model
        while True:
            began = self.monotonic()
            try:
                events = self.call(lambda: self.store.events(name, after=read_model.state.seq))
            except UnreadableError as error:
                with log.lock, _discard_torn_state(log):
                    read_model.apply(error.readable)
                raise
            is_end = len(events) < ENTRIES_PER_READ
            for start in range(0, len(events), _EVENTS_PER_LOCK):
                with log.lock, _discard_torn_state(log):
                    read_model.apply(events[start : start + _EVENTS_PER_LOCK])
            with log.lock:
                read_model.is_complete = is_end
            log.was_read = True
            if is_end:
                log.read_at = began
                break
            if self.monotonic() >= deadline:
                return False
        while is_live:
            began = self.monotonic()
            points = self.call(lambda: self.store.live(name, after=read_model.live.seq))
            with log.lock:
                read_model.add_points(points)
            if len(points) < ENTRIES_PER_READ:
                log.live_at = began
                break
            if self.monotonic() >= deadline:
                return False
        return True


def _visible_state(status: WorkerStatus) -> tuple[object, ...]:
    """Return the properties that pages show. Report times count only for lost workers, where they are constant."""
    record = status.record
    return record.worker, record.incarnation, status.running, status.leaving, status.is_lost
