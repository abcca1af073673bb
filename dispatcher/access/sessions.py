"""Ids of browser sessions, and which ones were signed out, so that copies of their cookies stop working too.

`Guard` asks for each request with a session cookie. The store records sign-outs for all processes and across
restarts; each process caches an answer for a second, up to 10,000. The cookie itself, its signature and its lifetime
are in `guard`. A cookie without a session id cannot be signed out, so `Guard` refuses it.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from cerebro.errors import StoreUnavailableError

FRESH_S = 1.0
"""Seconds to cache an answer of the store."""
_AWAY_S = 5.0
"""Seconds until an unavailable store is asked again, because each request may take seconds."""
_MAX_KNOWN = 10_000


class EndedSessions(Protocol):
    """The part of `KvsClient` that records ended sessions."""

    def end_session(self, session: str) -> None:
        """Record that a session has ended."""

    def has_session_ended(self, session: str) -> bool:
        """True if the session has ended."""


class Sessions:
    """Ids of sessions, and a cache of their state. Safe for several threads.

    Args:
        monotonic: seconds that never go back.
    """

    def __init__(self, store: EndedSessions, monotonic: Callable[[], float]) -> None:
        self._store, self._monotonic = store, monotonic
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[float, bool]] = OrderedDict()

    def begin(self) -> str:
        """Return the id of a new session."""
        session = secrets.token_hex(16)
        self._remember(session, has_ended=False)
        return session

    def end(self, session: str) -> None:
        """End a session: in this process at once, in others when their caches expire.

        Raises:
            StoreUnavailableError: the store is away, so other processes do not know.
        """
        self._remember(session, has_ended=True)
        self._store.end_session(session)

    def has_ended(self, session: str) -> bool:
        """True if the session was signed out, in any process.

        Raises:
            StoreUnavailableError: the store is away, and this process does not know the session.
        """
        with self._lock:
            until, has_ended = self._known.get(session, (None, False))
        if has_ended or (until is not None and self._monotonic() < until):
            return has_ended
        try:
            has_ended = self._store.has_session_ended(session)
        except StoreUnavailableError:
            if until is None:
                raise
            self._remember(session, has_ended=False, for_s=_AWAY_S)
            return False  # while the store is away, no process learns of sign-outs elsewhere
        self._remember(session, has_ended=has_ended)
        return has_ended

    def _remember(self, session: str, *, has_ended: bool, for_s: float = FRESH_S) -> None:
        with self._lock:
            known = self._known.get(session, (0.0, False))[1]
            self._known[session] = self._monotonic() + for_s, known or has_ended
            self._known.move_to_end(session)
            while len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
