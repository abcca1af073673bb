"""Who waits for which streams, and what wakes them: one connection and one thread, however many wait.

The script publishes the key of each stream that it appends to, and so wakes who waits for it, in any process. Whoever
waits reads again: what is published says only that there may be news. So nothing is lost if a message is: after a
pause of the connection all are woken, and every few seconds one read looks at all streams that are waited for. Where
Redis refuses its user the channel, that look is all there is. A connection that has fallen silent is replaced.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import redis

from kvs_api import keys
from kvs_api.long_polls import LongPoll

_SWEEP_S = 5.0
_PAUSE_S = 0.2
"""Between two tries to reach Redis."""
_REFUSED_S = 60.0
"""Between two tries to listen where that is refused."""

_SILENT_S = 12.0
"""A connection by which nothing came for so long, not even answers to the question at each look, is lost."""
_MOST_UNTOLD = 2
"""Looks that found something, with no message meanwhile: then messages go to another connection than this one."""

log = logging.getLogger(__name__)


class News:
    """Safe for several threads. The first reader that waits starts the listening thread; `close` ends it.

    Args:
        listener: client for the messages, which `close` disconnects.
        reader: client for the look at all streams.
        clock: seconds that never go back.
    """

    def __init__(
        self, listener: redis.Redis, reader: redis.Redis, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._listener, self._reader, self._clock = listener, reader, clock
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._cursors: dict[LongPoll, Mapping[str, int]] = {}
        self._by_key: dict[str, set[LongPoll]] = {}
        self._thread: threading.Thread | None = None
        self._is_refused = self._is_silent = False
        """Whether a line of the log has told of it."""

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._cursors)

    def expect(self, poll: LongPoll, cursors: Mapping[str, int]) -> None:
        """Wake it once there may be something after one of the cursors. What is there already wakes nobody: read after
        this, not before."""
        with self._lock:
            self._forget(poll)
            self._cursors[poll] = cursors
            for key in cursors:
                self._by_key.setdefault(key, set()).add(poll)
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._listen, name="news", daemon=True)
                self._thread.start()

    def forget(self, poll: LongPoll) -> None:
        """It waits no more."""
        with self._lock:
            self._forget(poll)

    def close(self) -> None:
        """End the thread; no reader is woken by news any more. Calling twice is safe."""
        with self._lock:
            self._closed.set()
            thread = self._thread
        self._listener.connection_pool.disconnect()  # wakes a thread that waits for a message
        if thread is not None:
            thread.join()

    def _forget(self, poll: LongPoll) -> None:
        for key in self._cursors.pop(poll, ()):
            waiting = self._by_key[key]
            waiting.discard(poll)
            if not waiting:
                del self._by_key[key]

    # --- the thread ------------------------------------------------------------------------------

    def _listen(self) -> None:
        while not self._closed.is_set():
            try:
                self._attend()
            except Exception:
                if self._closed.is_set():  # the connection was closed under it
                    return
                # Whatever it is: without this thread nobody would be told of news any more.
                log.exception("listening for news failed, and begins anew")
                self._closed.wait(_PAUSE_S)

    def _attend(self) -> None:
        """Listen by one connection, as long as it is good for that."""
        messages: redis.client.PubSub = self._listener.pubsub()  # type: ignore[no-untyped-call]
        try:
            messages.subscribe(keys.NEWS)
            refusal = self._follow(messages)
            if refusal is not None:
                self._note_refusal(refusal)
                self._sweep_for(_REFUSED_S)
        except redis.RedisError:
            # They are told that it is away.
            self._wake(list(self._by_key))
            self._closed.wait(_PAUSE_S)
        finally:
            messages.close()

    def _note_refusal(self, refusal: redis.ResponseError) -> None:
        if not self._is_refused:
            self._is_refused = True
            log.warning(
                "Redis refuses to tell of news (%s): who waits for them gets them up to %.0f s late. Give the user of "
                "CEREBRO_REDIS_URL the right to the channel: ACL SETUSER name &%s",
                refusal,
                _SWEEP_S,
                keys.NEWS,
            )

    def _sweep_for(self, duration_s: float) -> None:
        """Without messages."""
        until = self._clock() + duration_s
        while self._clock() < until and not self._closed.wait(_SWEEP_S):
            self._sweep()

    def _follow(self, messages: redis.client.PubSub) -> redis.ResponseError | None:
        """Wake whom messages tell of; returns once Redis refuses to send any, or none come by this connection."""
        swept = heard = self._clock()
        untold = 0
        while not self._closed.is_set():
            left_s = swept + _SWEEP_S - self._clock()
            if left_s <= 0:
                swept = self._clock()
                untold += self._sweep()
                if swept - heard > _SILENT_S or untold == _MOST_UNTOLD:
                    self._note_silence(untold)
                    return None
                # Nobody says so when a network has forgotten a connection that was idle.
                messages.ping("?")
                continue
            try:
                message = messages.get_message(timeout=left_s)
            except redis.ResponseError as refusal:
                return refusal
            if message is None:
                continue
            heard = self._clock()
            if message["type"] == "subscribe":
                self._is_refused = False
                # Whoever came before that may have missed something.
                self._wake(list(self._by_key))
            elif message["type"] == "message":
                self._is_silent, untold = False, 0
                self._wake([message["data"].decode()])
        return None

    def _note_silence(self, untold: int) -> None:
        if not self._is_silent:
            self._is_silent = True
            why = "was told of nothing that there was" if untold == _MOST_UNTOLD else "is silent"
            log.warning(
                "the connection to Redis by which news come %s: there will be another one. If that goes on, who waits "
                "gets them up to %.0f s late: look whether the user of CEREBRO_REDIS_URL has the right to the channel "
                "(ACL SETUSER name &%s)",
                why,
                _SWEEP_S,
                keys.NEWS,
            )

    def _wake(self, streams: Iterable[str]) -> None:
        with self._lock:
            found = {poll for key in streams for poll in self._by_key.get(key, ())}
            for poll in found:
                self._forget(poll)
        for poll in found:
            poll.wake()

    def _sweep(self) -> bool:
        """Look at all streams that are waited for; whether there was something."""
        now = time.monotonic()  # as `LongPoll.until`
        with self._lock:
            # Of one whose reader has left nobody asks any more.
            gone = [p for p in self._cursors if p.until is not None and p.until < now - _SWEEP_S]
            for poll in gone:
                self._forget(poll)
            oldest = {
                key: min(self._cursors[poll][key] for poll in polls) for key, polls in self._by_key.items()
            }
        if not oldest:
            return False
        streams = {key: f"{after}-0" for key, after in oldest.items()}
        answer: Any = self._reader.xread(streams, count=1)  # type: ignore[arg-type]
        pairs = answer.items() if isinstance(answer, dict) else answer
        found = [key.decode() for key, _ in pairs or ()]
        self._wake(found)
        return bool(found)
