"""Reader for time ranges of a log; its cost is independent of the log's length.

A page has a thousand events and starts at a fixed number, so full pages never change and the last ones read are cached,
as `cerebro.state.tasks.past_attempts.AttemptEvent`. A binary search finds the page for a time: first among the log's
segments, whose times the store knows, then among the pages of one segment, or of the part in the database.

Unreadable pages are reported and omitted.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, Protocol

from cerebro.contract.events import Event
from cerebro.contract.stored.segments import Segment, SegmentsAnswer
from cerebro.errors import LostEventsError, UnreadableError
from cerebro.state.reports.timeline import TaskAttempt
from cerebro.state.tasks.keys import TaskKey
from cerebro.state.tasks.past_attempts import AttemptEvent, PastAttempts, attempt_events

PAGE = 1000
"""Events per page: one answer of the store."""

MOST = 20_000
"""Maximum number of events in a window."""

_CACHE_SIZE = 64
"""Cached pages, about 300 kB each."""
_BEYOND = 8
"""Maximum number of pages after a window to search for ends of attempts."""
_BACK = (1, 3, 8)
"""Numbers of pages before a window to search for starts, in turn."""
_LOGS = 16
"""Logs with cached segments."""


class EventStore(Protocol):
    """The part of `cerebro.runtime.kvs.client.KvsClient` in use."""

    def events(self, experiment: str, after: int = 0) -> Sequence[Event]:
        """Return events with seq > `after`, oldest first; an empty sequence after the last."""
        ...

    def segments(self, experiment: str) -> SegmentsAnswer:
        """Return the log's segments in files; no segments if the store has none."""
        ...


class Log(NamedTuple):
    """A log and its length."""

    experiment: str
    created: float
    """Creation time of the experiment; a later one may have the same name."""
    newest: int
    """Number of the last event to read."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """Events from number `number` * `PAGE` + 1.

    Attributes:
        count: readable events.
        began, ended: times of first and last event; `nan` without any.
        problem: why events are unreadable, or empty.
    """

    number: int
    count: int
    began: float
    ended: float
    attempt_events: tuple[AttemptEvent, ...]
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Window:
    """Attempts in a time range.

    Attributes:
        task_attempts: attempts, in the order of appearance.
        since, until: the time range read, seconds of the store's clock.
        events: number of events in the range, rounded up to pages.
        is_cut: True if only the newest events were read.
        guessed: tasks with an unknown start of an attempt: start computed, devices unknown.
        problems: why parts are unreadable.
    """

    task_attempts: tuple[TaskAttempt, ...]
    since: float
    until: float
    events: int
    is_cut: bool = False
    guessed: int = 0
    problems: tuple[str, ...] = ()


class LogPages:
    """Reader for time ranges of logs. Thread-safe.

    Args:
        store: source; called without holding the lock.
        cache_size: number of cached pages.
    """

    def __init__(self, store: EventStore, *, cache_size: int = _CACHE_SIZE) -> None:
        self._store, self._cache_size = store, cache_size
        self._lock = threading.Lock()
        self._pages: OrderedDict[tuple[str, float, int], Page] = OrderedDict()
        self._segments: OrderedDict[tuple[str, float], tuple[Segment, ...]] = OrderedDict()

    # --- windows ---------------------------------------------------------------------------------

    def window(
        self,
        log: Log,
        run: str,
        since: float,
        until: float,
        *,
        chosen: Callable[[TaskKey], bool] = lambda key: True,
        max_events: int = MOST,
    ) -> Window:
        """Return the attempts of a run between two times (the store's clock, seconds).

        Reads at most `max_events` events of the range, and some thousand around it. It misses attempts that start
        and end outside these.

        Raises:
            NotFoundError: the experiment is gone.
            StoreUnavailableError: the store is down.
        """
        first, last = self._replica(log, since), self._replica(log, until, is_end=True)
        begin = max(first, last + 1 - max(1, max_events // PAGE))
        found = [self.page(log, number) for number in range(begin, last + 1)]
        past = _assemble(run, chosen, found)
        later_pages: list[Page] = []
        while (
            past.is_open(until)
            and len(later_pages) < _BEYOND
            and (last + 1 + len(later_pages)) * PAGE < log.newest
        ):
            later_pages.append(self.page(log, last + 1 + len(later_pages)))
            past.take(later_pages[-1].attempt_events)
        is_cut = begin > first
        since = max(since, found[0].began) if is_cut and found[0].count else since
        for back in _BACK:
            if not begin or not past.lacks_beginnings(since):
                break
            earlier_pages = [self.page(log, number) for number in range(max(0, begin - back), begin)]
            past = _assemble(run, chosen, [*earlier_pages, *found, *later_pages])
        found_attempts = past.window(since, until)
        return Window(
            task_attempts=tuple(found_attempts),
            since=since,
            until=until,
            events=(last - first) * PAGE + found[-1].count,
            is_cut=is_cut,
            guessed=len({each.key for each in found_attempts if each.is_guessed}),
            problems=tuple(dict.fromkeys(page.problem for page in found if page.problem)),
        )

    def through(self, log: Log, since: float, until: float) -> Iterator[Page]:
        """Yield the readable pages of a time range and before it, without caching."""
        first, last = self._replica(log, since), self._replica(log, until, is_end=True)
        for number in range(max(0, first - _BACK[-1]), last + 1):
            page = self._read(log, number)
            if number >= first or not page.problem:
                yield page

    # --- page of a time --------------------------------------------------------------------------

    def _replica(self, log: Log, time: float, *, is_end: bool = False) -> int:
        """Number of the first page that reaches a time, or passes it if `is_end`.

        Several events may share a time. The last page if no page does. An unreadable page counts as reaching a
        start but not an end."""

        def is_past(ended: float) -> bool:
            return ended > time if is_end else ended >= time

        low, high = 0, max(0, log.newest - 1) // PAGE
        segments = self._segments_of(log, time)
        index = _first(0, len(segments), lambda each: is_past(segments[each].ended))
        if index:
            low = (segments[index - 1].last - 1) // PAGE
        if index < len(segments):
            high = min(high, (segments[index].last - 1) // PAGE)

        def reaches(number: int) -> bool:
            page = self.page(log, number)
            return not is_end if page.problem else is_past(page.ended)

        return min(_first(low, high, reaches), high)

    def _segments_of(self, log: Log, time: float) -> tuple[Segment, ...]:
        """The log's segments, oldest first; the cached ones if they reach past `time`."""
        key = log.experiment, log.created
        with self._lock:
            known = self._segments.get(key, ())
        if known and known[-1].ended > time:
            return known
        found = self._store.segments(log.experiment).segments
        with self._lock:
            self._segments[key] = found
            self._segments.move_to_end(key)
            while len(self._segments) > _LOGS:
                self._segments.popitem(last=False)
        return found

    # --- pages -----------------------------------------------------------------------------------

    def page(self, log: Log, number: int) -> Page:
        """Return a page of a log.

        Raises:
            NotFoundError, StoreUnavailableError: see `window`.
        """
        key = log.experiment, log.created, number
        with self._lock:
            known = self._pages.get(key)
            if known is not None:
                self._pages.move_to_end(key)
                return known
        page = self._read(log, number)
        if page.count == PAGE and not page.problem:
            with self._lock:
                self._pages[key] = page
                while len(self._pages) > self._cache_size:
                    self._pages.popitem(last=False)
        return page

    def _read(self, log: Log, number: int) -> Page:
        first, last, problem = number * PAGE, (number + 1) * PAGE, ""
        found: list[Event] = []
        cursor = first
        while cursor < min(last, log.newest):
            try:
                events = self._store.events(log.experiment, cursor)
            except UnreadableError as error:
                events, problem = error.readable, _problem_text(error, first, last)
            found += (event for event in events if event.seq <= last)
            if not events or problem:
                break
            cursor = events[-1].seq
        return Page(
            number=number,
            count=len(found),
            began=found[0].time if found else float("nan"),
            ended=found[-1].time if found else float("nan"),
            attempt_events=tuple(attempt_events(found)),
            problem=problem,
        )


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The first number from `low` to `high` - 1 that `holds` accepts, by binary search; else `high`."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _assemble(run: str, chosen: Callable[[TaskKey], bool], pages: Sequence[Page]) -> PastAttempts:
    past = PastAttempts(run=run, chosen=chosen)
    past.take(chain.from_iterable(page.attempt_events for page in pages))
    return past


def _problem_text(error: UnreadableError, first: int, last: int) -> str:
    """The problem's text, equal for all pages of a segment."""
    if isinstance(error, LostEventsError):
        return error.reason or str(error)
    return f"events {error.seq or first + 1} to {last}: {error.reason or error}"
