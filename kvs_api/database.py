"""How the store speaks to Redis: connections, blocking reads, calls of the script, errors.

Knows no key but the clock's and the ledger's, and no contract. Safe for use by many threads; a blocking read holds one
pooled connection.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from typing import Any, TypeVar

import redis
from pydantic import BaseModel, ValidationError
from redis.backoff import NoBackoff
from redis.retry import Retry

from cerebro import errors
from cerebro.contract import api
from cerebro.runtime.draining import Draining
from kvs_api import keys
from kvs_api.clock import Clock
from kvs_api.long_poll_slots import LongPollSlots

_SCRIPT = (
    *("occupancy.lua", "quotas.lua", "steps.lua", "experiments.lua", "quarantine.lua", "ledger.lua"),
    *("segments.lua", "registry.lua", "history.lua", "workers.lua"),
)

PAGE = 1000
"""Most entries one read returns."""

_ANSWER_S = 15.0
"""A Redis that is silent for longer counts as away."""

_SLICE_S = 1.0
"""A blocking read asks Redis in slices of this length, so that it ends soon when the service does."""

_SLOT_S = 1.0
"""How long a reader waits for a slot: it is answered then, and asks again no more often than this."""

Model = TypeVar("Model", bound=BaseModel)
Entries = list[tuple[bytes, dict[bytes, bytes]]]


class Database:
    """Redis.

    Args:
        url: Redis URL (``redis://`` or ``unix://``).
        draining: once it is wanted, blocking reads answer with what they have.
        threads: requests served at once; see `LongPollSlots` for how many of them may block.
        elapsed: see `Clock`.
    """

    def __init__(
        self,
        url: str,
        draining: Draining | None = None,
        *,
        threads: int = 64,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = Clock(self._join, elapsed)
        self._draining = draining or Draining()
        self._slots = LongPollSlots(threads)
        # No retries: a repeated call is the client's business, and it waits between two of them.
        options: Any = {"socket_connect_timeout": 5, "retry": Retry(NoBackoff(), 0)}
        self._redis: redis.Redis = redis.Redis.from_url(url, socket_timeout=_ANSWER_S, **options)
        # The library's own limit, 5 s, would end a blocking read before its time.
        self._blocking: redis.Redis = redis.Redis.from_url(
            url, socket_timeout=api.MAX_WAIT_S + _ANSWER_S, **options
        )
        self._steps = self._redis.register_script(script())

    @property
    def waiting(self) -> int:
        """Readers that wait for news now."""
        return self._slots.held

    def ping(self) -> bool:
        """Whether Redis answers and has loaded its file."""
        try:
            return bool(self._redis.ping())
        except redis.RedisError:
            return False

    def _block(self, cursors: Mapping[str, int], wait_s: float) -> list[tuple[bytes, Entries]]:
        """Entries after the cursors; waits for one up to `wait_s` seconds, or less if too many wait already."""
        deadline = time.monotonic() + wait_s
        found = self._read(cursors, 0)
        if found or wait_s <= 0:
            return found
        with self._slots.slot(min(wait_s, _SLOT_S)) as is_held:
            while is_held and not found and not self._draining.is_wanted:
                block = round(min(deadline - time.monotonic(), _SLICE_S) * 1000)
                if block <= 0:
                    break
                if self._read(cursors, block):
                    # It is woken by one stream. What is in several at one moment, only a read of all of them tells.
                    found = self._read(cursors, 0)
        return found if is_held else self._read(cursors, 0)

    def _read(self, cursors: Mapping[str, int], block_ms: int) -> list[tuple[bytes, Entries]]:
        streams: Any = {key: f"{after}-0" for key, after in cursors.items()}
        source = self._blocking if block_ms else self._redis
        with translated():
            # BLOCK 0 would mean for ever.
            answer: Any = source.xread(streams, count=PAGE, block=block_ms or None)
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
                f"the record of {what} cannot be read ({errors.found_in(cause.errors())}): it is damaged, or was "
                "written by a newer version of Cerebro. Run that version, or delete it"
            ) from cause

    def _now(self) -> int:
        """The store's clock, in milliseconds."""
        with translated():
            known: Any = self._redis.get(keys.CLOCK)
        return max(int(known or 0), self._clock.now())

    def _join(self) -> int:
        call = {"call": "join", "workers": keys.WORKERS, "worker": keys.worker(""), "leader": keys.LEADER}
        return int(self._ask(call)["clock"])

    def _run(self, call: dict[str, Any], *texts: bytes) -> dict[str, Any]:
        """Call the script; `texts` go beside the call, for those that are many and that it only keeps."""
        return self._ask(call | {"at": self._clock.now()}, *texts)

    def _ask(self, call: dict[str, Any], *texts: bytes) -> dict[str, Any]:
        call |= {"clock": keys.CLOCK, "ledger": keys.LEDGER}
        with translated():
            answer: Any = self._steps(args=[json.dumps(call), *texts])
        parsed: dict[str, Any] = json.loads(answer)
        if "outcomes" in parsed:
            # Lua cannot tell an empty list from an empty table: cjson writes both as {}.
            parsed["outcomes"] = parsed["outcomes"] or []
        return parsed


def script() -> str:
    """The script that makes every change of state."""
    files = resources.files("kvs_api")
    return "\n".join(files.joinpath(name).read_text() for name in _SCRIPT)


def text(value: Any) -> str:
    """A string as Redis returns it: the client library's types allow for options we do not use."""
    return str(value.decode())


def seq_of(identity: bytes) -> int:
    """The number in a stream entry's id."""
    return int(identity.split(b"-", 1)[0])


@contextmanager
def translated() -> Iterator[None]:
    """Redis' errors as ours: all that a restart can mend is `StoreUnavailableError`."""
    try:
        yield
    except (redis.ConnectionError, redis.TimeoutError, redis.exceptions.BusyLoadingError) as cause:
        raise errors.StoreUnavailableError(f"Redis does not answer: {cause}") from cause
    except redis.ResponseError as cause:
        if str(cause).startswith(("MISCONF", "LOADING", "READONLY", "OOM")):
            raise errors.StoreUnavailableError(f"Redis refuses to write: {cause}") from cause
        raise
