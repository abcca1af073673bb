"""Wake-up of requests that wait for stream entries, with one connection and one thread per process.

`kvs_api.store.database.Database` registers each waiting request here. The thread reads no entries: a woken request
reads again itself (`kvs_api.api.long_polls`).

The script publishes the key of each stream it appends to. The thread receives the key and wakes the requests that
wait for this stream. A message may be lost without harm: after an interruption of the connection all requests
wake, and every 5 s one read checks all awaited streams. If Redis denies its user the channel, only this check
remains. A silent connection is replaced.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import redis

from kvs_api.api.long_polls import LongPoll
from kvs_api.store import keys

_SWEEP_S = 5.0
_PAUSE_S = 0.2
"""Pause between attempts to reach Redis."""
_REFUSED_S = 60.0
"""Pause between attempts to subscribe after a refusal."""

_SILENT_S = 12.0
"""Seconds without data, not even replies to pings, after which a connection counts as lost."""
_MAX_MISSED = 2
"""Checks in a row with news but no message before the connection is replaced."""

log = logging.getLogger(__name__)


class News:
    """Waiting requests by stream.

    Thread-safe. The first `expect` starts the listening thread; `close` ends it.

    Args:
        listener: client for the messages; `close` disconnects it.
        reader: client for the periodic check of all streams.
        clock: monotonic seconds.
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
        """True after the problem has been logged."""

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._cursors)

    def expect(self, poll: LongPoll, cursors: Mapping[str, int]) -> None:
        """Wake the request when an entry follows one of the cursors.

        Existing entries wake nothing: read after this call, not before it.
        """
        with self._lock:
            self._forget(poll)
            self._cursors[poll] = cursors
            for key in cursors:
                self._by_key.setdefault(key, set()).add(poll)
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._listen, name="news", daemon=True)
                self._thread.start()

    def forget(self, poll: LongPoll) -> None:
        """Stop waking the request."""
        with self._lock:
            self._forget(poll)

    def close(self) -> None:
        """End the thread. No request wakes afterwards. Safe to call twice."""
        with self._lock:
            self._closed.set()
            thread = self._thread
        self._listener.connection_pool.disconnect()  # wakes a thread blocked on a message
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
                if self._closed.is_set():  # `close` disconnected it
                    return
                # Continue after any error: without this thread, no request would wake.
                log.exception("listening for news failed; restarting")
                self._closed.wait(_PAUSE_S)

    def _attend(self) -> None:
        """Listen on one connection until it fails."""
        messages: redis.client.PubSub = self._listener.pubsub()  # type: ignore[no-untyped-call]
        try:
            messages.subscribe(keys.NEWS)
            refusal = self._follow(messages)
            if refusal is not None:
                self._note_refusal(refusal)
                self._sweep_for(_REFUSED_S)
        except redis.RedisError:
            # Woken requests read again and report that Redis is unavailable.
            self._wake(list(self._by_key))
            self._closed.wait(_PAUSE_S)
        finally:
            messages.close()

    def _note_refusal(self, refusal: redis.ResponseError) -> None:
        if not self._is_refused:
            self._is_refused = True
            log.warning(
                "Redis refuses the subscription to news (%s), so waiting requests are answered up to %.0f s late. "
                "Allow the user of CEREBRO_REDIS_URL the channel: ACL SETUSER name &%s",
                refusal,
                _SWEEP_S,
                keys.NEWS,
            )

    def _sweep_for(self, duration_s: float) -> None:
        """Check the streams periodically, without messages."""
        until = self._clock() + duration_s
        while self._clock() < until and not self._closed.wait(_SWEEP_S):
            self._sweep()

    def _follow(self, messages: redis.client.PubSub) -> redis.ResponseError | None:
        """Wake requests by messages. Return when Redis refuses the subscription or the connection is silent."""
        swept = heard = self._clock()
        missed = 0
        while not self._closed.is_set():
            left_s = swept + _SWEEP_S - self._clock()
            if left_s <= 0:
                swept = self._clock()
                missed += self._sweep()
                if swept - heard > _SILENT_S or missed == _MAX_MISSED:
                    self._note_silence(missed)
                    return None
                # An idle connection may be dropped without notice; the ping detects that.
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
                # Requests that came earlier may have missed a message.
                self._wake(list(self._by_key))
            elif message["type"] == "message":
                self._is_silent, missed = False, 0
                self._wake([message["data"].decode()])
        return None

    def _note_silence(self, missed: int) -> None:
        if not self._is_silent:
            self._is_silent = True
            why = "delivered no messages" if missed == _MAX_MISSED else "is silent"
            log.warning(
                "the connection to Redis for news %s and is replaced. If this repeats, waiting requests are answered "
                "up to %.0f s late: check that the Redis user may use the channel (ACL SETUSER name &%s)",
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
        """Read all awaited streams and wake requests. Return True if there was a new entry."""
        now = time.monotonic()  # clock of `LongPoll.until`
        with self._lock:
            # Drop requests past their deadline; they have been answered.
            overdue = [p for p in self._cursors if p.until is not None and p.until < now - _SWEEP_S]
            for poll in overdue:
                self._forget(poll)
            oldest = {
                key: min(self._cursors[poll][key] for poll in polls) for key, polls in self._by_key.items()
            }
        if not oldest:
            return False
        streams = {key: f"{cursor}-0" for key, cursor in oldest.items()}
        answer: Any = self._reader.xread(streams, count=1)  # type: ignore[arg-type]
        pairs = answer.items() if isinstance(answer, dict) else answer
        found = [key.decode() for key, _ in pairs or ()]
        self._wake(found)
        return bool(found)
