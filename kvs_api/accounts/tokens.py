"""Tokens of people and programs: creation, lookup, list, revocation; one-time sign-in codes; ended sessions.

Called by `kvs_api.api.access`, which caches tokens for 2 s, and by the account views. Redis holds only hashes. A
token's rights are fixed at its creation (`cerebro.contract.accounts.identity.granted`); tokens made with a token end
with it. The cluster's token and services' tokens are not here: they come from the environment.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from pydantic import ValidationError

from cerebro import errors
from cerebro.contract.accounts.identity import (
    MAX_TOKENS,
    MadeToken,
    Principal,
    TokenRecord,
    TokenRequest,
    digest,
    granted,
    minted,
    owns,
)
from cerebro.contract.accounts.reserved_names import same_name
from cerebro.contract.rest.api import SignedIn, SignInCode
from kvs_api.accounts.audit import AuditStore
from kvs_api.store import keys
from kvs_api.store.database import text, translated

_DAY_S = 24 * 3600
_EXPIRED_KEPT_S = 30 * _DAY_S
"""Seconds an expired token remains known, so that its owner gets the reason."""
_CODE_S = 600
"""Seconds that a one-time sign-in code is valid."""
MAX_OPEN_CODES = 20
"""Maximum number of unused sign-in codes of a token."""
_SESSION_S = 8 * _DAY_S
"""Seconds to remember an ended session; its cookie is valid for seven days."""


class StoredToken(NamedTuple):
    """A stored token."""

    record: TokenRecord
    digest: str


class TokenStore(AuditStore):
    """Tokens and sessions."""

    def make_token(self, request: TokenRequest, maker: Principal) -> MadeToken:
        """Make and store a token with at most the maker's rights. Each call makes another one.

        Raises:
            ForbiddenError: it would have more rights than its maker.
            ConflictError: its owner has too many, or the name is a variant spelling of another.
        """
        principal = granted(request, maker)
        if isinstance(principal, str):
            raise errors.ForbiddenError(principal)
        now = time.time()
        expires, made_with = now + request.days * _DAY_S, ""
        is_own = principal.identity == maker.identity
        parent_id = maker.token if is_own else ""
        if parent_id:
            parent = self.token(parent_id)
            made_with, expires = parent_id, min(expires, parent.record.expires if parent else now)
        known = self.tokens()
        living = [
            each for each in known if each.principal.identity == principal.identity and each.expires > now
        ]
        other_names = {each.principal.name for each in known if not each.principal.id and each.expires > now}
        if not principal.id and (other := _other_spelling(principal.name, other_names)):
            raise errors.ConflictError(
                f"{other!r} has tokens, and {principal.name!r} differs only in spelling. Use the existing "
                "spelling, or choose another name"
            )
        if len(living) >= MAX_TOKENS:
            raise errors.ConflictError(
                f"{principal.name} has {len(living)} tokens, at most {MAX_TOKENS} may be valid at a time: revoke one"
            )
        identity, token, hashed = minted()
        record = TokenRecord(
            id=identity,
            principal=principal.model_copy(update={"token": identity}),
            label=request.label,
            maker=made_with,
            created=now,
            expires=expires,
        )
        fields: Any = {"record": record.model_dump_json(), "sha": hashed}
        with translated():
            pipe = self._redis.pipeline()
            pipe.hset(keys.token(identity), mapping=fields)
            pipe.expireat(keys.token(identity), round(expires + _EXPIRED_KEPT_S))
            pipe.zadd(keys.TOKENS, {identity: now})
            pipe.execute()
        whose = "" if is_own else f" for {principal.name}"
        self.note(maker.name, f"made token {identity}{whose}: {principal.role}, {request.days} days")
        return MadeToken(token=token, record=record)

    def token(self, identity: str) -> StoredToken | None:
        """Return a token by its id.

        `None` if it is revoked, long expired, unknown or unreadable.
        """
        with translated():
            found: Any = self._redis.hmget(keys.token(identity), "record", "sha", "used")
        stored = _stored(found)
        if stored is None or not stored.record.maker:
            return stored
        if self.token(stored.record.maker) is None:
            return None  # made while its maker was being revoked; makers are kept as long as the tokens they made
        return stored

    def tokens(self, principal: Principal | None = None) -> tuple[TokenRecord, ...]:
        """Return all tokens that a principal may see, newest first; without a principal, all."""
        with translated():
            names = [text(name) for name in self._redis.zrange(keys.TOKENS, 0, -1, desc=True)]
            pipe = self._redis.pipeline(transaction=False)
            for name in names:
                pipe.hmget(keys.token(name), "record", "sha", "used")
            found = pipe.execute()
            expired = [name for name, fields in zip(names, found, strict=True) if fields[0] is None]
            if expired:
                self._redis.zrem(keys.TOKENS, *expired)
        known = [stored.record for stored in map(_stored, found) if stored is not None]
        return tuple(each for each in known if principal is None or owns(principal, each))

    def revoke_token(self, identity: str, principal: Principal) -> None:
        """Revoke a token and all tokens made with it.

        Raises:
            NotFoundError: the token is unknown or has another owner.
        """
        visible = self.tokens(principal)
        if not any(each.id == identity for each in visible):
            raise errors.NotFoundError(
                f"no token {identity!r} of yours: `cerebro token list` and the page Account name them"
            )
        ends = _with_descendants(identity, self.tokens())
        with translated():
            pipe = self._redis.pipeline()
            pipe.unlink(*map(keys.token, ends))
            pipe.zrem(keys.TOKENS, *ends)
            pipe.execute()
        self.note(principal.name, f"revoked token {', '.join(ends)}")

    def record_use(self, identity: str, now: float) -> None:
        """Record the time of a token's last use. A failure to write it is ignored."""
        with suppress(errors.StoreUnavailableError), translated():
            if self._redis.exists(keys.token(identity)):
                self._redis.hset(keys.token(identity), "used", str(int(now)))
                if not self._redis.hexists(keys.token(identity), "record"):
                    self._redis.unlink(keys.token(identity))  # revoked between the two calls

    # --- sessions of the page --------------------------------------------------------------------

    def make_sign_in_code(self, owner: SignedIn) -> SignInCode:
        """Make a one-time code that signs a browser in as its owner, within ten minutes.

        If its maker has too many open codes, the oldest ones end.
        """
        code = secrets.token_urlsafe(32)
        hashed, listed = digest(code), keys.sign_in_links(digest(owner.acts_for))
        with translated():
            pipe = self._redis.pipeline()
            pipe.set(keys.sign_in_code(hashed), owner.model_dump_json(), ex=_CODE_S)
            pipe.zadd(listed, {hashed: time.time()})
            pipe.expire(listed, _CODE_S)
            pipe.zrange(listed, 0, -MAX_OPEN_CODES - 1)
            pipe.zremrangebyrank(listed, 0, -MAX_OPEN_CODES - 1)
            *_, ended, _ = pipe.execute()
            if ended:
                self._redis.unlink(*(keys.sign_in_code(text(each)) for each in ended))
        return SignInCode(code=code, lasts_s=_CODE_S)

    def sign_in_code_owner(self, code: str) -> SignedIn:
        """Return the owner of an unused code.

        Raises:
            NotFoundError: the code is unknown or expired.
            ConflictError: the code was used.
        """
        key = keys.sign_in_code(digest(code))
        with translated():
            found: Any = self._redis.mget(key, f"{key}:used")
        owner, mark = found
        if owner is None:
            raise _unknown_link()
        if mark is not None:
            raise _used_link()
        return SignedIn.model_validate_json(owner)

    def redeem_sign_in_code(self, code: str, once: str) -> SignedIn:
        """Use a code up and return its owner. Of several calls with different `once`, exactly one succeeds.

        Args:
            once: idempotency key; a repeated call with the same key succeeds again.

        Raises:
            NotFoundError: the code is unknown or expired.
            ConflictError: another call has used it.
        """
        key = keys.sign_in_code(digest(code))
        with translated():
            owner: Any = self._redis.get(key)
            if owner is None:
                raise _unknown_link()
            # The mark outlives the code, so the code cannot become unused again.
            is_first = self._redis.set(f"{key}:used", once, nx=True, ex=_CODE_S)
            if not is_first and text(self._redis.get(f"{key}:used")) != once:
                raise _used_link()
            signed_in = SignedIn.model_validate_json(owner)
            self._redis.zrem(keys.sign_in_links(digest(signed_in.acts_for)), digest(code))
        if is_first and signed_in.owner:
            whose = signed_in.acts_for if signed_in.acts_for.startswith("token ") else "the cluster's token"
            self.note(signed_in.owner, f"a sign-in link of {whose} was used")
        return signed_in

    def end_session(self, session: str) -> None:
        """Record that a session has ended, for longer than its cookies are valid."""
        with translated():
            self._redis.set(keys.session(session), "", ex=_SESSION_S)

    def has_session_ended(self, session: str) -> bool:
        """True if `end_session` was called for this id."""
        with translated():
            return bool(self._redis.exists(keys.session(session)))


def _unknown_link() -> errors.NotFoundError:
    return errors.NotFoundError("this sign-in link is unknown here or has expired")


def _used_link() -> errors.ConflictError:
    return errors.ConflictError("this sign-in link was used already")


def _stored(fields: Any) -> StoredToken | None:
    content, digest, used = fields
    if content is None or digest is None:
        return None
    try:
        record = TokenRecord.model_validate_json(content)
    except ValidationError:
        return None
    return StoredToken(
        record.model_copy(update={"used": float(used) if used is not None else None}), text(digest)
    )


def _other_spelling(name: str, known: Iterable[str]) -> str:
    """Return a known name that differs only in case or Unicode form, or ""."""
    return next((each for each in known if each != name and same_name(each) == same_name(name)), "")


def _with_descendants(identity: str, known: Iterable[TokenRecord]) -> list[str]:
    """Return a token and all tokens made with it, directly or indirectly."""
    ends, records = [identity], list(known)
    for end in ends:
        ends += [each.id for each in records if each.maker == end and each.id not in ends]
    return ends
