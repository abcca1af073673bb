"""Requests that wait for news without a thread.

`App` owns the waiting requests; `kvs_api.store.news` wakes them. A read of the store that finds no news
(`Database._block`) marks the `LongPoll` as waiting, and the view returns an empty answer. Before the deadline the app
discards this answer, waits in the event loop for `wake` or the deadline, and calls the view again. So a waiting request
holds only a connection, and the token is checked again before the answer. If the caller leaves, nothing is answered.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

log = logging.getLogger(__name__)

_WARN_EVERY_S = 60.0

Receive = Callable[[], Awaitable[Any]]


class LongPoll:
    """One request that may wait for news, once or several times. Create it in its server's event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._news: asyncio.Future[None] | None = None
        self._is_woken = False
        self.until: float | None = None
        """Deadline of the answer, as `time.monotonic`; `None` before the first wait."""
        self.is_waiting = False
        """True if the view found no news before the deadline. A thread resets it before each call of the view."""

    def begin(self, wait_s: float) -> bool:
        """Return whether the request may wait: at most `wait_s` seconds from the first call."""
        if self.until is None:
            self.until = time.monotonic() + wait_s
        self.is_waiting = not self.is_over
        return self.is_waiting

    @property
    def is_over(self) -> bool:
        """True if the deadline has passed."""
        return self.until is not None and time.monotonic() >= self.until

    def wake(self) -> None:
        """Call the view again. Thread-safe; may be called any number of times."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._is_woken = True
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def end(self) -> None:
        """Answer the request now. In the event loop only."""
        self.until = 0.0
        self._wake()

    async def news(self, receive: Receive) -> bool:
        """Wait until `wake` or the deadline; return `False` if the caller has left."""
        self._news = self._loop.create_future()
        leaving = self._loop.create_task(_leave(receive))
        try:
            if not self._is_woken:
                left_s = max(0.0, (self.until or 0.0) - time.monotonic())
                await asyncio.wait((self._news, leaving), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            return not leaving.done()
        finally:
            leaving.cancel()
            self._news, self._is_woken = None, False


async def _leave(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class LongPolls:
    """The waiting requests of one server. Used in its event loop only.

    Args:
        max_waiting: maximum number of waiting requests. Each further one causes an early answer to the oldest.
    """

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._waiting: dict[LongPoll, None] = {}
        self._has_ended = False
        self._warned = float("-inf")

    async def news(self, poll: LongPoll, receive: Receive) -> bool:
        """Wait as `LongPoll.news` does; call `forget` after the last wait."""
        if self._has_ended:
            poll.end()
        elif not poll.is_over:  # the deadline may have passed, or `end` was called, during the view
            self._waiting[poll] = None
        if len(self._waiting) > self._max_waiting:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.end()
            self._warn()
        return await poll.news(receive)

    def forget(self, poll: LongPoll) -> None:
        """Note that a request is answered."""
        self._waiting.pop(poll, None)

    def _warn(self) -> None:
        if (now := time.monotonic()) > self._warned + _WARN_EVERY_S:
            self._warned = now
            log.warning(
                "more than %s requests wait for news: the oldest are answered early. Allow more open files, or run "
                "more processes",
                self._max_waiting,
            )

    def end(self) -> None:
        """Answer all waiting requests, and let no later one wait."""
        self._has_ended = True
        for poll in list(self._waiting):
            poll.end()
