"""Resolve tokens and sessions to users by asking the store, with a cache of one second.

Only in users mode; `Guard` calls it for each request, `sign_in` for each typed token. Keeps up to 10,000 answers in
memory, and uses them longer while the store is away. The store decides about rights
(`cerebro.contract.accounts.identity`).
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple, Protocol

from cerebro.contract.accounts.identity import OPERATOR_WORD, TOKEN, Principal, operator_word
from cerebro.errors import StoreUnavailableError

FRESH_S = 1.0
"""Seconds to cache an answer. The store caches tokens for 2 s more, so a revoked token fails within 5 s."""
_MAX_KNOWN = 10_000


class Known(NamedTuple):
    """A user, and the value of `ACTS_FOR` in requests of this user to the store."""

    principal: Principal
    acts_for: str

    @property
    def token(self) -> str:
        """Id of the token, for the audit log. Never the secret."""
        return OPERATOR_WORD if self.acts_for.startswith(f"{OPERATOR_WORD} ") else self.acts_for


class WhoIs(Protocol):
    """The part of `KvsClient` that resolves tokens."""

    def whoami(self, *, acts_for: str = "", token: str = "") -> Principal:
        """Return the user of a token, or of a session."""


class Identities:
    """Cached lookups of users. Safe for several threads."""

    def __init__(self, store: WhoIs, monotonic: Callable[[], float]) -> None:
        self._store, self._monotonic = store, monotonic
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, tuple[float, Known]] = OrderedDict()

    def from_token(self, secret: str) -> Known:
        """Return the user of a token.

        Raises:
            UnauthorizedError: the token is unknown or expired; the message says which.
            ForbiddenError: the token is a service's.
            StoreUnavailableError: the store is away and the token is not cached.
        """
        found = TOKEN.fullmatch(secret)
        word = f"token {found[1]}" if found else operator_word(secret)
        return self._lookup(secret, lambda: Known(self._store.whoami(token=secret), word))

    def from_session(self, acts_for: str) -> Known:
        """Return the user who signed in. Raises the same errors as `from_token`."""
        return self._lookup(f" {acts_for}", lambda: Known(self._store.whoami(acts_for=acts_for), acts_for))

    def _lookup(self, credential: str, fetch: Callable[[], Known]) -> Known:
        # Cache a hash of the secret, never the secret.
        key, now = hashlib.sha256(credential.encode("utf-8", "surrogatepass")).digest(), self._monotonic()
        with self._lock:
            at, known = self._known.get(key, (float("-inf"), None))
        if known is not None and now < at + FRESH_S:
            return known
        try:
            found = fetch()
        except StoreUnavailableError:
            if known is None:
                raise
            return known  # while the store is away, no token can be revoked
        with self._lock:
            self._known[key] = now, found
            self._known.move_to_end(key)
            while len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
        return found
