"""Reads the store for the pages: follows event logs and live points, and remembers since when the store is away.

Pages show the last good data while the store does not answer, so everything read is kept, within bounds: logs of up to
`_MAX_EVENTS` events in all, live points counted in. However many people look, an experiment is read at most each
`FRESH_S`. Only the log is believed; nothing here decides anything.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from cerebro.contract.api import QueueAnswer
from cerebro.contract.records import ExperimentRecord, WorkerStatus
from cerebro.errors import IllegalEventError, NotFoundError, StoreUnavailableError, UnreadableError
from cerebro.state import QueuePosition, queue_positions
from cerebro.state.snapshots import restored
from dispatcher.reading.background import Background
from dispatcher.reading.circuit_breaker import CircuitBreaker
from dispatcher.reading.read_model import ReadModel
from dispatcher.reading.recent import Recent
from dispatcher.reading.store import ENTRIES_PER_READ, Store

T = TypeVar("T")

FRESH_S = 0.5
"""What was read is shown for so long before it is read again."""
WORKERS_S = 2.0
"""The same of the workers: what they do is in the log, only whether they answer is not."""
READING_S = 2.0
"""How long a page may wait for a log that it does not know yet."""

_RECORD_S = 5.0
"""Records never change; but an experiment may be deleted, and its name be given to another one."""
_SUMMARIES_SHARE = 0.03
"""Of the time, at most, that is spent on reading the list of experiments: with thousands it takes a while."""
_MAX_EVENTS = 250_000
"""Half a kilobyte each once folded, with the rows of their models."""
_PIECE = 200
"""Events folded in one go: some milliseconds, in which no page of the experiment is built."""
_READING_S = 0.5
"""How long a request waits for another one that reads the same log."""
_WAITERS = 8
"""Requests that wait for long logs at a time: the others say at once how far it is."""


@dataclass(kw_only=True)
class _Log:
    read_model: ReadModel
    recorded_at: float
    """When the record was read."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while `read_model` is used."""
    reading: threading.Lock = field(default_factory=threading.Lock)
    """Held by whoever reads the store for it."""
    is_begun: bool = False
    """Whether the newest snapshot of its fold was asked for."""
    was_read: bool = False
    read_at: float = float("-inf")
    """When the newest read to the log's end began."""
    live_at: float = float("-inf")
    """The same of live points."""
    caught_up: threading.Event = field(default_factory=threading.Event)


@contextmanager
def _none_in_part(log: _Log) -> Iterator[None]:
    """Never show a state in which an event is half applied."""
    try:
        yield
    except BaseException as error:
        if log.read_model.state.torn:
            log.was_read, log.read_at, log.live_at = False, float("-inf"), float("-inf")
            if not isinstance(error, IllegalEventError):  # nothing is wrong with the event
                log.read_model = ReadModel(log.read_model.record)
                log.is_begun = False
        raise


class Reader(CircuitBreaker):
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
        super().__init__(store, clock=clock, monotonic=monotonic)
        self.background = Background(monotonic)
        self._lock = threading.Lock()
        self._waiters = threading.BoundedSemaphore(_WAITERS)
        self._logs: OrderedDict[str, _Log] = OrderedDict()
        # The store is asked by name each time: a test may give it another method.
        self.summaries = Recent(
            self,
            lambda: store.experiments(),  # noqa: PLW0108
            fresh_s=FRESH_S,
            share=_SUMMARIES_SHARE,
        )
        """All experiments, newest event first."""
        self.workers = Recent[tuple[WorkerStatus, ...]](
            self,
            lambda: store.workers(),  # noqa: PLW0108
            fresh_s=WORKERS_S,
            shown=lambda found: list(map(_shown, found)),
            absent=(),
        )
        """All workers; none if the store is away and never answered."""
        self.queue = Recent(
            self,
            lambda: store.queued(),  # noqa: PLW0108
            fresh_s=WORKERS_S,
            absent=QueueAnswer(runs=()),
        )
        """Open runs; none if the store is away and never answered."""

    def queue_positions(self, experiment: str) -> tuple[QueuePosition, ...]:
        """Where the open runs of an experiment stand beside all that are open."""
        return tuple(each for each in queue_positions(self.queue()) if each.experiment == experiment)

    # --- one experiment --------------------------------------------------------------------------

    def record(self, name: str) -> ExperimentRecord:
        """One experiment; the last good record during an outage.

        Raises:
            NotFoundError: there is none.
        """
        return self._log_of(name).read_model.record

    def look(self, name: str, build: Callable[[ReadModel], T], *, timeout_s: float = READING_S) -> T:
        """``build(read_model)`` on an experiment as it is now; what it is given must not be kept.

        A long log is waited for up to about `timeout_s`; what is read of it so far is shown then, and
        `ReadModel.is_complete` is false.

        Raises:
            NotFoundError: there is no such experiment.
            IllegalEventError: the log does not fit this program.
            StoreUnavailableError: the store is away and this log was never read.
        """
        log = self._log_of(name)
        self._refresh(log, timeout_s, is_live=True)
        with log.lock:
            return build(log.read_model)

    def version(self, name: str) -> tuple[object, ...]:
        """What `look` would show, as something to compare: equal means that nothing has changed.

        Raises:
            As `look`.
        """
        log = self._log_of(name)
        self._refresh(log, 0.0, is_live=True)
        return *log.read_model.version(self.now()), self.outage is not None

    def glance(self, record: ExperimentRecord, build: Callable[[ReadModel], T], *, timeout_s: float) -> T:
        """``build(read_model)`` on the log alone, without live points; see `look`. `record` may be of an older list.

        Raises:
            NotFoundError: the experiment was deleted since, and its name given to another one.
        """
        log = self._kept(record, is_newest=False)
        self._refresh(log, timeout_s, is_live=False)
        with log.lock:
            return build(log.read_model)

    def before_fault(self, name: str, build: Callable[[ReadModel], T]) -> T | None:
        """``build(read_model)`` on what was read of a log before the event that cannot be; `None` of nothing."""
        with self._lock:
            log = self._logs.get(name)
        if log is None:
            return None
        with log.lock:
            return None if log.read_model.state.torn else build(log.read_model)

    def read_anew(self, name: str) -> ReadModel:
        """An experiment's whole log, folded for the caller alone: for what takes so long that others must not wait.

        Raises:
            NotFoundError: there is no such experiment.
            IllegalEventError: the log does not fit this program.
            StoreUnavailableError: the store is away.
        """
        found = self.begun(self.record(name))
        while not found.is_complete:
            events = self.ask(lambda: self.store.events(name, after=found.state.seq))
            found.apply(events)
            found.is_complete = len(events) < ENTRIES_PER_READ
        return found

    # --- mechanism -------------------------------------------------------------------------------

    def _log_of(self, name: str) -> _Log:
        with self._lock:
            log = self._logs.get(name)
            if log is not None:
                self._logs.move_to_end(name)
        if log is not None and self.monotonic() < log.recorded_at + _RECORD_S:
            return log
        try:
            return self._kept(self.ask(lambda: self.store.experiment(name)), is_newest=True)
        except StoreUnavailableError:
            if log is None:
                raise
            return log
        except NotFoundError:
            with self._lock:
                self._logs.pop(name, None)
            raise

    def _kept(self, record: ExperimentRecord, *, is_newest: bool) -> _Log:
        with self._lock:
            log = self._logs.get(record.name)
            if log is None or log.read_model.record != record:  # the name may have been given to another one
                if log is not None and not is_newest and record.created < log.read_model.record.created:
                    raise NotFoundError(f"the experiment {record.name!r} of this list was deleted")
                log = self._logs[record.name] = _Log(read_model=ReadModel(record), recorded_at=float("-inf"))
            if is_newest:
                log.recorded_at = self.monotonic()
            self._logs.move_to_end(record.name)
            return log

    def expect_news(self, name: str) -> None:
        """Somebody has just written to this experiment's log: the next look and the next list read it anew."""
        with self._lock:
            log = self._logs.get(name)
            if log is not None:
                log.read_at = float("-inf")
        self.summaries.expect_news()
        self.queue.expect_news()

    def _trim(self) -> None:
        """Forget logs that nobody has looked at for longest."""
        with self._lock:
            kept = sum(log.read_model.weight for log in self._logs.values())
            while kept > _MAX_EVENTS and len(self._logs) > 1:
                _, oldest = self._logs.popitem(last=False)
                kept -= oldest.read_model.weight

    def _refresh(self, log: _Log, timeout_s: float, *, is_live: bool) -> None:
        """Read what is new, if it is time to; a long log is left to the background after `timeout_s`."""
        if self._is_fresh(log, is_live):
            return
        key = ("log", log.read_model.record.name, log.read_model.record.created)
        if self.background.has(key):
            self._wait(log, timeout_s)
            return
        if not log.reading.acquire(timeout=_READING_S if log.was_read else -1):
            return  # a store that hangs must not hang everybody: what is known is shown
        try:
            if self._is_fresh(log, is_live):
                return  # read while this waited
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
        after = self.monotonic() - FRESH_S
        return log.read_at > after and (not is_live or log.live_at > after)

    def begun(self, record: ExperimentRecord) -> ReadModel:
        """What the newest snapshot of an experiment's fold tells, or nothing."""
        return ReadModel(record, self.ask(lambda: restored(self.store, record.name)))

    def _wait(self, log: _Log, timeout_s: float) -> None:
        if timeout_s > 0 and self._waiters.acquire(blocking=False):
            try:
                log.caught_up.wait(timeout_s)
            finally:
                self._waiters.release()

    def _catch_up(self, log: _Log) -> bool:
        """A step in the background; whether nothing is left to do."""
        with self._lock:
            if self._logs.get(log.read_model.record.name) is not log:
                return True  # others were looked at since, and it was forgotten
        with log.reading:
            is_done = self._read(log, self.monotonic(), is_live=True)
        self._trim()
        if is_done:
            log.caught_up.set()
        return is_done

    def _read(self, log: _Log, deadline: float, *, is_live: bool) -> bool:
        """Read until the end or the deadline, at least a page; whether the end was reached. `log.reading` is held."""
        if not log.is_begun:
            begun = self.begun(log.read_model.record)
            with log.lock:
                if begun.state.seq > log.read_model.state.seq:
                    log.read_model = begun
            log.is_begun = True
        name, read_model = log.read_model.record.name, log.read_model
        while True:
            began = self.monotonic()
            try:
                events = self.ask(lambda: self.store.events(name, after=read_model.state.seq))
            except UnreadableError as error:
                with log.lock, _none_in_part(log):
                    read_model.apply(error.readable)
                raise
            is_end = len(events) < ENTRIES_PER_READ
            for start in range(0, len(events), _PIECE):
                with log.lock, _none_in_part(log):
                    read_model.apply(events[start : start + _PIECE])
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
            points = self.ask(lambda: self.store.live(name, after=read_model.live.seq))
            with log.lock:
                read_model.take(points)
            if len(points) < ENTRIES_PER_READ:
                log.live_at = began
                break
            if self.monotonic() >= deadline:
                return False
        return True


def _shown(status: WorkerStatus) -> tuple[object, ...]:
    """What pages show of a worker. When it last reported is shown of those only that do not answer, and does not change
    while they do not."""
    record = status.record
    return record.worker, record.incarnation, status.running, status.leaving, status.is_lost
