"""Who somebody is, where there are users: asked of the store by their token, and remembered for a second.

What a session or a program may is never decided here: the store says who it is, and refuses what it may not
(`cerebro.contract.identity`).
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple, Protocol

from cerebro.contract.identity import OPERATOR_WORD, TOKEN, Principal, operator_word
from cerebro.errors import StoreUnavailableError

FRESH_S = 1.0
"""The store believes a token for two seconds more: so one that is revoked opens nothing within 5 s."""
_MAX_KNOWN = 10_000


class Known(NamedTuple):
    """Who it is, and by which word the dispatcher acts for them at the store (`ACTS_FOR`)."""

    principal: Principal
    acts_for: str

    @property
    def token(self) -> str:
        """Which token it is, for the audit list."""
        return OPERATOR_WORD if self.acts_for.startswith(f"{OPERATOR_WORD} ") else self.acts_for


class WhoIs(Protocol):
    """The store's answer to the question who somebody is; see `KvsClient.whoami`."""

    def whoami(self, *, acts_for: str = "", token: str = "") -> Principal:
        """Of a token, or of whom a session stands for."""


class Identities:
    """Asks who somebody is. Safe for several threads."""

    def __init__(self, store: WhoIs, monotonic: Callable[[], float]) -> None:
        self._store, self._monotonic = store, monotonic
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, tuple[float, Known]] = OrderedDict()

    def of_token(self, secret: str) -> Known:
        """Whose token it is.

        Raises:
            UnauthorizedError: nobody's, or it has ended: says which.
            ForbiddenError: it is a service's.
            StoreUnavailableError: the store is away, and nobody has come with it before.
        """
        found = TOKEN.fullmatch(secret)
        word = f"token {found[1]}" if found else operator_word(secret)
        return self._asked(secret, lambda: Known(self._store.whoami(token=secret), word))

    def of_session(self, acts_for: str) -> Known:
        """Who has signed in with a token. Raises: as `of_token`."""
        return self._asked(f" {acts_for}", lambda: Known(self._store.whoami(acts_for=acts_for), acts_for))

    def _asked(self, by: str, ask: Callable[[], Known]) -> Known:
        # Secrets are not kept, not even in memory.
        key, now = hashlib.sha256(by.encode("utf-8", "surrogatepass")).digest(), self._monotonic()
        with self._lock:
            at, known = self._known.get(key, (float("-inf"), None))
        if known is not None and now < at + FRESH_S:
            return known
        try:
            found = ask()
        except StoreUnavailableError:
            if known is None:
                raise
            return known  # nothing can be revoked either while the store is away
        with self._lock:
            self._known[key] = now, found
            self._known.move_to_end(key)
            while len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
        return found
