"""Who asks: the principal behind a request's bearer token.

Three kinds of tokens are known: the cluster's own (`CEREBRO_TOKEN`), which is the operator's; one for each service,
from the environment; and those of people and programs, in the store. Where there are no users (`auth.mode: token`),
only the first one is, and whoever has it may do anything, as whoever it says.
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

from cerebro.contract import reserved_names
from cerebro.contract.identity import (
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
from kvs_api.settings import Settings
from kvs_api.tokens import StoredToken, TokenStore

OPERATOR = "admin"
"""How logs call whoever has the cluster's own token."""

FRESH_S = 2.0
"""A token that was looked up is believed for so long. With what the page remembers, it ends within 5 s."""
_USED_EVERY_S = 60.0
_MAX_KNOWN = 10_000

_WRONG = (
    "wrong or missing bearer token: a local cluster keeps it in <home>/run/token; elsewhere set CEREBRO_TOKEN"
)
_UNKNOWN = (
    "this token is not known here, or was revoked: make another one on the page Account, by `cerebro token create`, "
    "or ask an admin for one"
)


class _Looked(NamedTuple):
    stored: StoredToken | None
    at: float
    used: float


class Access:
    """Finds out who asks. Safe for several threads.

    Args:
        clock: seconds since the epoch. monotonic: seconds that never go back.
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
        self._known: OrderedDict[str, _Looked] = OrderedDict()

    def who(self, authorization: str, acts_for: str = "") -> Principal | None:
        """Who asks; `None`: anybody, where there are no users.

        Args:
            authorization, acts_for: the headers ``Authorization`` and `ACTS_FOR`.

        Raises:
            UnauthorizedError: the token is missing, unknown, revoked or expired: says which.
            ForbiddenError: who asks may not act for somebody.
        """
        given = authorization.encode("utf-8", "surrogatepass")
        is_operator = hmac.compare_digest(given, self._operator)
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
        # By the hash, as a key of a table: how long that takes tells nothing of a secret.
        service = self._services.get(hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest())
        if service is not None:
            return service
        found = TOKEN.fullmatch(secret)
        if found is None:
            raise UnauthorizedError(_UNKNOWN)
        return self._of_token(found[1], found[2])

    def _of_token(self, identity: str, secret: str | None = None) -> Principal:
        """Whom a token stands for; without the secret, of one that was seen before."""
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
        # Tokens of the operator have its id, and admins may do the same as the operator.
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
            known = self._known.get(identity)
        if known is not None and now < known.at + FRESH_S:
            return known.stored
        stored = self._tokens.token(identity)
        with self._lock:
            # What is not there is not remembered: guesses would push out what is.
            if stored is None:
                self._known.pop(identity, None)
                return None
            used = known.used if known is not None else float("-inf")
            self._known[identity] = _Looked(stored, now, used)
            self._known.move_to_end(identity)
            while len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
        return stored

    def _note_use(self, identity: str) -> None:
        now = self._monotonic()
        with self._lock:
            known = self._known.get(identity)
            if known is None or now < known.used + _USED_EVERY_S:
                return
            self._known[identity] = known._replace(used=now)
        self._tokens.was_used(identity, self._clock())

    def _represented(self, caller: Principal, acts_for: str) -> Principal:
        """For whom the dispatcher asks: it has checked that they have signed in."""
        if not caller.may(Scope.ACT):
            raise ForbiddenError(caller.lacks(Scope.ACT))
        kind, _, identity = acts_for.partition(" ")
        if kind == "token":
            return self._of_token(identity)
        if kind == OPERATOR_WORD:
            if not hmac.compare_digest(acts_for.encode("utf-8", "surrogatepass"), self._operator_word):
                raise UnauthorizedError(
                    "this session was begun with a token that is not the cluster's any more: sign in again"
                )
            return _OPERATOR
        try:
            somebody = Principal.model_validate_json(acts_for)
        except ValidationError as cause:
            raise ForbiddenError("the dispatcher names nobody that can be understood") from cause
        if somebody.role not in RANK or somebody.kind != "person" or somebody.token:
            raise ForbiddenError(
                f"the dispatcher acts for people, not for a {somebody.kind} that is {somebody.role}"
            )
        if somebody.id == OPERATOR_WORD:
            raise ForbiddenError("the dispatcher names the operator by its word alone")
        if reserved := reserved_names.reason(somebody.name):
            raise ForbiddenError(reserved)
        return somebody


_OPERATOR = Principal(name=OPERATOR, role=Role.ADMIN, id=OPERATOR_WORD)
