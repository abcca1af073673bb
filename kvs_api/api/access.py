"""Authentication: the principal of a request's bearer token. `kvs_api.api.app` calls it; it checks no scope.

Three kinds of tokens exist: the cluster's token (`CEREBRO_TOKEN`), for the operator; one for each service,
from the environment; and tokens of people and programs, in the store. Without users (`auth.mode: token`) only
the cluster's token exists. It permits everything, under any name the caller states.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from pydantic import ValidationError

from cerebro.contract.accounts import reserved_names
from cerebro.contract.accounts.identity import (
    OPERATOR_WORD,
    RANK,
    TOKEN,
    Principal,
    Role,
    Scope,
    digest,
    operator_word,
)
from cerebro.errors import ForbiddenError, UnauthorizedError
from kvs_api.accounts.tokens import StoredToken, TokenStore
from kvs_api.settings import Settings

OPERATOR = "admin"
"""Name in logs for the holder of the cluster's token."""

FRESH_S = 2.0
"""Cache lifetime of a token in seconds. With the page's own cache, a revoked token works for at most 5 s."""
_USED_EVERY_S = 60.0
"""Minimum seconds between two writes of a token's time of use."""
_MAX_KNOWN = 10_000
"""Maximum number of cached tokens."""

_WRONG = (
    "wrong or missing bearer token: a local cluster keeps it in <home>/run/token; elsewhere set CEREBRO_TOKEN"
)
_UNKNOWN = (
    "the token is unknown or revoked: make another one on the page Account, by `cerebro token create`, "
    "or ask an admin for one"
)


class _CachedToken(NamedTuple):
    stored: StoredToken | None
    at: float
    used: float


class Access:
    """Authenticates requests. Thread-safe.

    Args:
        clock: seconds since the epoch. monotonic: monotonic seconds.
    """

    def __init__(
        self,
        settings: Settings,
        tokens: TokenStore,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._has_users = settings.has_users
        self._operator = f"Bearer {settings.token}".encode()
        self._operator_word = operator_word(settings.token).encode()
        self._tokens, self._clock, self._monotonic = tokens, clock, monotonic
        self._services = {
            hashlib.sha256(secret.encode()).digest(): Principal(name=role, role=role, kind="service")
            for role, secret in settings.service_tokens.items()
        }
        self._lock = threading.Lock()
        self._cache: OrderedDict[str, _CachedToken] = OrderedDict()

    def authenticate(self, authorization: str, acts_for: str = "") -> Principal | None:
        """Return the caller; `None` on clusters without users.

        Args:
            authorization, acts_for: the headers ``Authorization`` and `ACTS_FOR`.

        Raises:
            UnauthorizedError: the token is missing, unknown, revoked or expired; the message says which.
            ForbiddenError: the caller may not act for others.
        """
        header = authorization.encode("utf-8", "surrogatepass")
        is_operator = hmac.compare_digest(header, self._operator)
        if not self._has_users:
            if not is_operator:
                raise UnauthorizedError(_WRONG)
            return None
        if is_operator:
            return _OPERATOR
        caller = self._bearer(authorization)
        return self._represented(caller, acts_for) if acts_for else caller

    def _bearer(self, authorization: str) -> Principal:
        scheme, _, secret = authorization.partition(" ")
        if scheme.lower() != "bearer" or not secret.strip():
            raise UnauthorizedError(
                "no token was sent: a person's program sends one as `Authorization: Bearer ck_...`"
            )
        secret = secret.strip()
        # Look up by hash: the time a table takes reveals nothing about a secret.
        service = self._services.get(hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest())
        if service is not None:
            return service
        found = TOKEN.fullmatch(secret)
        if found is None:
            raise UnauthorizedError(_UNKNOWN)
        return self._token_principal(found[1], found[2])

    def _token_principal(self, identity: str, secret: str | None = None) -> Principal:
        """Return the principal of a token. Without `secret`, the token was checked before."""
        stored = self._looked_up(identity)
        if stored is None:
            raise UnauthorizedError(_UNKNOWN)
        if secret is not None and not hmac.compare_digest(digest(secret), stored.digest):
            raise UnauthorizedError(_UNKNOWN)
        if stored.record.expires <= self._clock():
            day = time.strftime("%Y-%m-%d", time.gmtime(stored.record.expires))
            raise UnauthorizedError(
                f"the token {identity} expired on {day}: make another one on the page Account, or ask an admin for one"
            )
        principal = stored.record.principal
        # Tokens of the operator have its id, and admins have the operator's rights.
        is_named = not principal.id and principal.role is not Role.ADMIN
        if is_named and (reserved := reserved_names.reason(principal.name)):
            raise ForbiddenError(
                f"the token {identity} opens nothing: {reserved}. An admin makes another one"
            )
        self._note_use(identity)
        return principal

    def _looked_up(self, identity: str) -> StoredToken | None:
        now = self._monotonic()
        with self._lock:
            known = self._cache.get(identity)
        if known is not None and now < known.at + FRESH_S:
            return known.stored
        stored = self._tokens.token(identity)
        with self._lock:
            # Missing tokens are not cached: guesses would displace valid ones.
            if stored is None:
                self._cache.pop(identity, None)
                return None
            used = known.used if known is not None else float("-inf")
            self._cache[identity] = _CachedToken(stored, now, used)
            self._cache.move_to_end(identity)
            while len(self._cache) > _MAX_KNOWN:
                self._cache.popitem(last=False)
        return stored

    def _note_use(self, identity: str) -> None:
        now = self._monotonic()
        with self._lock:
            known = self._cache.get(identity)
            if known is None or now < known.used + _USED_EVERY_S:
                return
            self._cache[identity] = known._replace(used=now)
        self._tokens.record_use(identity, self._clock())

    def _represented(self, caller: Principal, acts_for: str) -> Principal:
        """Return the person the dispatcher acts for. The dispatcher has checked the sign-in."""
        if not caller.may(Scope.ACT):
            raise ForbiddenError(caller.lacks(Scope.ACT))
        kind, _, identity = acts_for.partition(" ")
        if kind == "token":
            return self._token_principal(identity)
        if kind == OPERATOR_WORD:
            if not hmac.compare_digest(acts_for.encode("utf-8", "surrogatepass"), self._operator_word):
                raise UnauthorizedError(
                    "the token of this session is no longer the cluster's token: sign in again"
                )
            return _OPERATOR
        try:
            somebody = Principal.model_validate_json(acts_for)
        except ValidationError as cause:
            raise ForbiddenError("the dispatcher sent an invalid principal") from cause
        if somebody.role not in RANK or somebody.kind != "person" or somebody.token:
            raise ForbiddenError(
                f"the dispatcher acts for people, not for a {somebody.kind} that is {somebody.role}"
            )
        if somebody.id == OPERATOR_WORD:
            raise ForbiddenError("the dispatcher may not act for the operator without a session")
        if reserved := reserved_names.reason(somebody.name):
            raise ForbiddenError(reserved)
        return somebody


_OPERATOR = Principal(name=OPERATOR, role=Role.ADMIN, id=OPERATOR_WORD)
