"""A log read by stretches of time: what a stretch costs does not depend on how long the log is.

A log is read in pages of a thousand events, which always begin at the same numbers: one that is full never changes, so
the last ones that were read are kept, as `cerebro.state.past.Move`. The page where a time is, is found by halves:
first among the segments of the log, whose times the store tells, then among the pages of that segment. For the part
that is in the database there are no segments, and as many steps as its length has digits.

A page that cannot be read is told of, and left out.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, Protocol

from cerebro.contract.events import Event
from cerebro.contract.segments import Segment, SegmentsAnswer
from cerebro.errors import LostEventsError, UnreadableError
from cerebro.state.keys import TaskKey
from cerebro.state.past import Move, Pieces, moves
from cerebro.state.timeline import Try

PAGE = 1000
"""Events of a page: as many as the store gives at once."""

MOST = 20_000
"""Events of a window at most."""

_KEPT = 64
"""Pages that are kept, some 300 kilobytes each."""
_BEYOND = 8
"""Pages after a window that are looked through at most for the end of what is in it."""
_BACK = (1, 3, 8)
"""Pages before it, for the beginning: at first so many, then more."""
_LOGS = 16
"""Logs whose segments are kept."""


class EventStore(Protocol):
    """What is asked of the store, as `cerebro.runtime.kvs.KvsClient` does it."""

    def events(self, experiment: str, after: int = 0) -> Sequence[Event]:
        """Events with seq > `after`, oldest first, none at the end."""
        ...

    def segments(self, experiment: str) -> SegmentsAnswer:
        """What of a log is in files; nothing where the store knows no segments."""
        ...


class Log(NamedTuple):
    """Which log, and how much of it there is."""

    experiment: str
    created: float
    """Of the experiment: another one may have its name later."""
    newest: int
    """Number of an event, up to which it is read."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """Events number `number` * `PAGE` + 1 and following.

    Attributes:
        count: how many there were to read.
        began, ended: times of the first and the last of them; without any, `nan`.
        problem: why some of them cannot be read; empty: all can.
    """

    number: int
    count: int
    began: float
    ended: float
    moves: tuple[Move, ...]
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Window:
    """What was under way in a stretch of time.

    Attributes:
        tries: attempts, in the order in which they came up.
        since, until: what of the stretch was read, seconds of the store's clock.
        events: how many there are in all of the stretch, to a page. is_cut: there were too many: the newest were read.
        guessed: so many tasks have an attempt whose beginning was not found: its start is computed, its devices are
            not known.
        problems: what could not be read, and why.
    """

    tries: tuple[Try, ...]
    since: float
    until: float
    events: int
    is_cut: bool = False
    guessed: int = 0
    problems: tuple[str, ...] = ()


class LogPages:
    """Reads stretches of logs. Safe for several threads.

    Args:
        store: is asked while no lock is held.
        kept: pages.
    """

    def __init__(self, store: EventStore, *, kept: int = _KEPT) -> None:
        self._store, self._kept = store, kept
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
        most: int = MOST,
    ) -> Window:
        """Attempts of a run that were under way between two times, seconds of the store's clock. At most `most`
        events of it are read, and some thousand before and after it.

        An attempt that both began and ended further away is not found.

        Raises:
            NotFoundError: there is no such experiment any more.
            StoreUnavailableError: the store is away.
        """
        first, last = self._replica(log, since), self._replica(log, until, is_end=True)
        begin = max(first, last + 1 - max(1, most // PAGE))
        found = [self.page(log, number) for number in range(begin, last + 1)]
        pieces = _put_together(run, chosen, found)
        after: list[Page] = []
        while pieces.is_open(until) and len(after) < _BEYOND and (last + 1 + len(after)) * PAGE < log.newest:
            after.append(self.page(log, last + 1 + len(after)))
            pieces.take(after[-1].moves)
        is_cut = begin > first
        since = max(since, found[0].began) if is_cut and found[0].count else since
        for back in _BACK:
            if not begin or not pieces.lacks_beginnings(since, until):
                break
            before = [self.page(log, number) for number in range(max(0, begin - back), begin)]
            pieces = _put_together(run, chosen, [*before, *found, *after])
        told = pieces.window(since, until)
        return Window(
            tries=tuple(told.tries),
            since=since,
            until=until,
            events=(last - first) * PAGE + found[-1].count,
            is_cut=is_cut,
            guessed=len(told.guessed),
            problems=tuple(dict.fromkeys(page.problem for page in found if page.problem)),
        )

    def through(self, log: Log, since: float, until: float) -> Iterator[Page]:
        """All pages of a stretch of time, and those before it, where what is in it may begin, that can be read; none of
        them is kept."""
        first, last = self._replica(log, since), self._replica(log, until, is_end=True)
        for number in range(max(0, first - _BACK[-1]), last + 1):
            page = self._read(log, number)
            if number >= first or not page.problem:
                yield page

    # --- where a time is -------------------------------------------------------------------------

    def _replica(self, log: Log, time: float, *, is_end: bool = False) -> int:
        """Number of the first page with an event at or after a time, or of the end of a stretch after it: several
        events may have the same time. The last page, if none has. Among pages that cannot be read it is the first
        one, or of the end of a stretch the last one."""

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
        """The log's segments, oldest first: those that were told, as long as they reach further than the time."""
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
        """A page of a log.

        Raises:
            NotFoundError, StoreUnavailableError: as of `window`.
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
                while len(self._pages) > self._kept:
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
                events, problem = error.readable, _told(error, first, last)
            found += (event for event in events if event.seq <= last)
            if not events or problem:
                break
            cursor = events[-1].seq
        return Page(
            number=number,
            count=len(found),
            began=found[0].time if found else float("nan"),
            ended=found[-1].time if found else float("nan"),
            moves=tuple(moves(found)),
            problem=problem,
        )


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The first of the numbers from `low` to below `high` of which it holds, as of all after it; else `high`."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _put_together(run: str, chosen: Callable[[TaskKey], bool], pages: Sequence[Page]) -> Pieces:
    pieces = Pieces(run=run, chosen=chosen)
    pieces.take(chain.from_iterable(page.moves for page in pages))
    return pieces


def _told(error: UnreadableError, first: int, last: int) -> str:
    """In the same words for each page of one segment."""
    if isinstance(error, LostEventsError):
        return error.reason or str(error)
    return f"events {error.seq or first + 1} to {last}: {error.reason or error}"
