"""Requests that wait for news without a thread: an app says that it has no answer yet, and is asked again later.

Whoever answers a request asks `current` for its `LongPoll`. One that has nothing to tell has `wake` called once there
may be news, and calls `park`: that raises `Parked` through all frames of the app, and the thread is free for other
requests. The server asks the app anew, with the same request, after `wake` or when the wait is over. So the app has one
way to answer, the token is looked at again, and nothing of a request that waits lies in a thread.

Knows neither what is waited for nor how requests are served. Where no server of this kind is, `current` is `None`.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

log = logging.getLogger(__name__)

_WARN_EVERY_S = 60.0


class Parked(BaseException):
    """A request has no answer yet, and waits. No error: nothing but the server may catch it."""


class LongPoll:
    """One request, which may wait for news once or several times.

    Args:
        resume: has the app asked anew. Called from any thread, once for each time that the request waits.
    """

    def __init__(self, resume: Callable[[], None]) -> None:
        self.began = time.perf_counter()
        """When it was asked for the first time."""
        self.until: float | None = None
        """When it is to be answered at the latest, as `time.monotonic`; known once it has waited."""
        self._resume = resume
        self._lock = threading.Lock()
        self._is_parked = self._is_woken = False

    @property
    def is_over(self) -> bool:
        """Whether it is to be answered with what there is."""
        return self.until is not None and time.monotonic() >= self.until

    def park(self, wait_s: float) -> None:
        """Wait for `wake`, from the first call on for no longer than `wait_s` seconds in all.

        Raises:
            Parked: always, but in a thread of its own (`InThread`).
        """
        if self.until is None:
            self.until = time.monotonic() + wait_s
        raise Parked

    def wake(self) -> None:
        """There may be news, or the wait is over. Safe in any thread, at any time, and any number of times."""
        with self._lock:
            is_parked, self._is_parked = self._is_parked, False
            self._is_woken = not is_parked
        if is_parked:
            self._resume()

    def settle(self) -> bool:
        """The app is done with it for now, which is the server's to say; false if it was woken meanwhile."""
        with self._lock:
            self._is_parked, self._is_woken = not self._is_woken, False
            return self._is_parked

    def end(self) -> None:
        """Have it answered now."""
        self.until = 0.0
        self.wake()


class InThread(LongPoll):
    """For who answers no request of such a server: waits in the thread that asks."""

    def __init__(self) -> None:
        self._news = threading.Event()
        super().__init__(self._news.set)

    def park(self, wait_s: float) -> None:
        """Wait here; returns after `wake`, or when the wait is over."""
        self.until = time.monotonic() + wait_s if self.until is None else self.until
        self._news.clear()
        if self.settle():
            self._news.wait(self.until - time.monotonic())


_CURRENT: ContextVar[LongPoll | None] = ContextVar("long_poll", default=None)


def current() -> LongPoll | None:
    """That of the request which this thread answers."""
    return _CURRENT.get()


@contextmanager
def answering(poll: LongPoll) -> Iterator[None]:
    """In this context the thread answers that request."""
    token = _CURRENT.set(poll)
    try:
        yield
    finally:
        _CURRENT.reset(token)


class ParkedRequests:
    """The requests of one server that wait, and when each is to be answered. Safe for several threads.

    Args:
        most: so many may wait. For each one more, the one that has waited longest is answered with what there is.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._present: dict[LongPoll, None] = {}
        """Those that have waited and are not answered yet, in the order in which they came."""
        self._order = itertools.count()
        self._until: list[tuple[float, int, LongPoll]] = []
        """A heap. One that was answered before its time stays in it until then, and nothing comes of it."""
        self._has_ended = False
        self._warned = float("-inf")

    def add(self, poll: LongPoll) -> bool:
        """One more waits; whether its time is over before that of all others."""
        is_first, over = False, poll
        with self._lock:
            if not self._has_ended:
                until = poll.until or 0.0
                heapq.heappush(self._until, (until, next(self._order), poll))
                is_first = self._until[0][2] is poll
                self._present[poll] = None
                if len(self._present) <= self._most:
                    return is_first
                over = next(iter(self._present))
                del self._present[over]
                self._warn()
        over.end()
        return is_first

    def _warn(self) -> None:
        if (now := time.monotonic()) > self._warned + _WARN_EVERY_S:
            self._warned = now
            log.warning(
                "more than %s requests wait for news: those that wait longest are answered early, and will ask again. "
                "Allow more open files, or run more processes",
                self._most,
            )

    def forget(self, poll: LongPoll) -> None:
        """It is answered. One that is not known is none the worse for it."""
        with self._lock:
            self._present.pop(poll, None)

    def wake_due(self) -> float | None:
        """Have those answered whose time is over; seconds until that of the next one is."""
        due = []
        now = time.monotonic()
        with self._lock:
            while self._until and self._until[0][0] <= now:
                due.append(heapq.heappop(self._until)[2])
            left_s = self._until[0][0] - now if self._until else None
        for poll in due:
            poll.wake()
        return left_s

    def end(self) -> None:
        """Have all answered, and from now on whoever would wait. Twice is safe."""
        with self._lock:
            self._has_ended = True
            waiting, self._until = self._until, []
            self._present.clear()
        for _, _, poll in waiting:
            poll.end()
