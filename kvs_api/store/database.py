"""Connection to Redis: blocking reads, calls of the Lua script, translation of errors.

`Database` is the first base class of `kvs_api.store.store.Store`, whose parts call it. It knows no rule about shared
state and uses only the keys of the clock, the leader, the news and the cluster log. Thread-safe. A read that waits
for news holds neither a thread nor a connection (`kvs_api.store.news`).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import resources
from typing import Any, TypeVar

import redis
from pydantic import BaseModel, ValidationError
from redis.backoff import NoBackoff
from redis.retry import Retry

from cerebro import errors
from kvs_api.api.long_polls import LongPoll
from kvs_api.store import keys
from kvs_api.store.clock import Clock
from kvs_api.store.news import News

_SCRIPT = (
    *(
        "occupancy.lua",
        "quotas.lua",
        "steps.lua",
        "experiments.lua",
        "experiment_quarantine.lua",
        "cluster_log.lua",
    ),
    *("segments.lua", "registry.lua", "history.lua", "workers.lua"),
)

PAGE = 1000
"""Maximum number of entries in one read."""

_ANSWER_S = 15.0
"""Seconds after which a silent Redis counts as unavailable."""

_LEAST_FILE, _FILE_TIMES = 64 << 20, 4
"""Size in bytes, and multiple of used memory, above which to rewrite the append-only file."""

_log = logging.getLogger(__name__)

Model = TypeVar("Model", bound=BaseModel)
Entries = list[tuple[bytes, dict[bytes, bytes]]]


class Database:
    """A connection to Redis.

    Args:
        url: Redis URL (``redis://`` or ``unix://``).
        elapsed: see `Clock`.
    """

    def __init__(self, url: str, *, elapsed: Callable[[], float] = time.monotonic) -> None:
        self._clock = Clock(self._join, elapsed)
        self.fence = ContextVar("fence", default=0)
        """Leadership term of the present request; the script refuses its writes in any other term. 0: no term."""
        self.poll: ContextVar[LongPoll | None] = ContextVar("poll", default=None)
        """The present request, if it may wait for news."""
        # No retries: the client repeats calls, with pauses in between.
        options: Any = {"socket_connect_timeout": 5, "retry": Retry(NoBackoff(), 0)}
        self._redis: redis.Redis = redis.Redis.from_url(url, socket_timeout=_ANSWER_S, **options)
        self._news = News(redis.Redis.from_url(url, socket_timeout=_ANSWER_S, **options), self._redis)
        self._steps = self._redis.register_script(script())

    @property
    def waiting(self) -> int:
        """Number of requests that wait for news."""
        return self._news.waiting

    def close(self) -> None:
        """End the listening thread and close the connections. Safe to call twice."""
        self._news.close()
        self._redis.close()

    def ping(self) -> bool:
        """Return whether Redis answers and has loaded its file."""
        try:
            return bool(self._redis.ping())
        except redis.RedisError:
            return False

    def _shrink_file(self) -> None:
        """Rewrite the append-only file if it is much larger than used memory.

        Redis reads the whole file at start, and by itself rewrites it only when it has doubled.
        """
        try:
            persistence: Any = self._redis.info("persistence")
            size = int(persistence.get("aof_current_size", 0))
            if size < _LEAST_FILE or persistence.get("aof_rewrite_in_progress"):
                return
            memory: Any = self._redis.info("memory")
            if size > _FILE_TIMES * int(memory["used_memory"]):
                self._redis.bgrewriteaof()
        except redis.RedisError as error:  # the Redis user may lack the permission; nothing is lost
            _log.debug("the append-only file was not rewritten: %s", error)

    def forget(self, poll: LongPoll) -> None:
        """Stop waking a request at new entries."""
        self._news.forget(poll)

    def _block(self, cursors: Mapping[str, int], wait_s: float) -> list[tuple[bytes, Entries]]:
        """Return at most `PAGE` entries after each cursor, of all streams at one moment. Never blocks.

        If the result is empty and the request may wait, the first new entry wakes it (`kvs_api.api.long_polls`).
        """
        poll = self.poll.get()
        if wait_s <= 0 or poll is None:
            return self._read(cursors)
        if poll.begin(wait_s):
            self._news.expect(poll, cursors)  # first, so that an entry appended after the read wakes it
        found = None
        try:
            found = self._read(cursors)
        finally:
            poll.is_waiting = poll.is_waiting and found == []
            if not poll.is_waiting:
                self._news.forget(poll)
        return found

    def _read(self, cursors: Mapping[str, int]) -> list[tuple[bytes, Entries]]:
        streams: Any = {key: f"{cursor}-0" for key, cursor in cursors.items()}
        with translated():
            answer: Any = self._redis.xread(streams, count=PAGE)
        pairs = answer.items() if isinstance(answer, dict) else answer
        return [(key, entries) for key, entries in pairs or ()]

    def _document(self, key: str, model: type[Model], what: str) -> Model:
        with translated():
            content: Any = self._redis.get(key)
        if content is None:
            raise errors.NotFoundError(f"no {what} in the store")
        try:
            return model.model_validate_json(content)
        except ValidationError as cause:
            raise errors.UnreadableError(
                f"the record of {what} cannot be read ({errors.validation_summary(cause.errors())}): it is damaged, "
                "or was written by a newer version of Cerebro. Run that version, or delete it"
            ) from cause

    def _now(self) -> int:
        """Return the store's clock, in milliseconds."""
        with translated():
            known: Any = self._redis.get(keys.CLOCK)
        return max(int(known or 0), self._clock.now())

    def _join(self) -> int:
        return int(self._call_script({"call": "join"})["clock"])

    def _run(self, call: dict[str, Any], *texts: bytes) -> dict[str, Any]:
        """Call the script. `texts` are values it only stores, sent outside the JSON because they may be many."""
        return self._call_script(call | {"at": self._clock.now()}, *texts)

    def _call_script(self, call: dict[str, Any], *texts: bytes) -> dict[str, Any]:
        call |= {
            "clock": keys.CLOCK,
            "cluster_log": keys.CLUSTER_LOG,
            "news": keys.NEWS,
            "leader": keys.LEADER,
        }
        if fence := self.fence.get():
            call["fence"] = fence
        with translated():
            answer: Any = self._steps(args=[json.dumps(call), *texts])
        parsed: dict[str, Any] = json.loads(answer)
        if "stale" in parsed:
            term = call.get("term", fence)
            raise errors.ConflictError(f"leadership term {term} has ended, term {parsed['stale']} leads")
        if "outcomes" in parsed:
            # Lua cannot tell an empty list from an empty table: cjson writes both as {}.
            parsed["outcomes"] = parsed["outcomes"] or []
        return parsed


def script() -> str:
    """Return the Lua script: the text of all `.lua` files of this folder, in the order of `_SCRIPT`."""
    files = resources.files(__name__.rpartition(".")[0])
    return "\n".join(files.joinpath(name).read_text() for name in _SCRIPT)


def text(value: Any) -> str:
    """Decode a string from Redis. The client's types allow for unused options."""
    return str(value.decode())


def seq_of(identity: bytes) -> int:
    """Return the number in a stream entry's id."""
    return int(identity.split(b"-", 1)[0])


@contextmanager
def translated() -> Iterator[None]:
    """Translate Redis errors. Problems that a restart can solve become `StoreUnavailableError`."""
    try:
        yield
    except (redis.ConnectionError, redis.TimeoutError, redis.exceptions.BusyLoadingError) as cause:
        raise errors.StoreUnavailableError(f"Redis does not answer: {cause}") from cause
    except redis.ResponseError as cause:
        if str(cause).startswith(("MISCONF", "LOADING", "READONLY", "OOM")):
            raise errors.StoreUnavailableError(f"Redis refuses to write: {cause}") from cause
        raise
