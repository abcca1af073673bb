"""Verify ID tokens that an authenticating proxy forwards (OpenID Connect Core 1.0, section 3.1.3.7).

The token is trusted, not the proxy: signature, issuer, audience, type and times are checked, so a forged header
fails. Settings map the groups of the identity provider to a role and projects. `Guard` calls `IdTokens.verify` for
each request with an ID token. `oidc_keys` reads the provider's keys; nothing here redirects to the provider or
refreshes a token.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from cerebro.contract.accounts import reserved_names
from cerebro.contract.accounts.identity import RANK, Principal, Role
from cerebro.errors import validation_summary
from dispatcher.access.identities import Known
from dispatcher.access.oidc_keys import (
    ALGORITHMS,
    IdTokenError,
    Keys,
    OidcUnavailableError,
    VerifiedKey,
    refused,
)
from dispatcher.settings import Oidc

__all__ = ["IdTokenError", "IdTokens", "OidcUnavailableError", "is_jwt", "principal_of"]

_LEEWAY_S = 30
"""Accepted difference between the clocks of provider and cluster, in seconds."""
_CACHED_S = 3600.0
"""Maximum seconds to cache a verified token. It is cached no longer than it is valid."""
_MAX_LENGTH = 16_000
_MAX_SUBJECT_LENGTH = 255
_MAX_KNOWN = 2_000
_LOGOUT = "http://schemas.openid.net/event/backchannel-logout"


def is_jwt(text: str) -> bool:
    """True if `text` has the form of an ID token. Cerebro's own tokens never do."""
    return text.startswith("ey") and text.count(".") == 2


class IdTokens:
    """Verifier of ID tokens. Safe for several threads.

    Args:
        clock: seconds since the epoch.
        monotonic: seconds that never go back.
    """

    def __init__(
        self,
        settings: Oidc,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._clock = settings, clock
        self._keys = Keys(settings, monotonic)
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, tuple[float, VerifiedKey, Known]] = OrderedDict()

    def verify(self, token: str) -> tuple[Known, bool]:
        """Return the user of an ID token, and whether the token is new.

        Raises:
            IdTokenError: the token is invalid; the message names the claim, and the expected and actual value.
            OidcUnavailableError: the provider is away and its keys are not cached.
        """
        if len(token) > _MAX_LENGTH:
            raise refused(f"the ID token has {len(token)} characters, expected {_MAX_LENGTH} at most")
        digest, now = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest(), self._clock()
        with self._lock:
            cached = self._known.get(digest)
        if cached is not None and now < cached[0] and self._keys.has(cached[1]):
            return cached[2], False
        claims, key = self._verified_claims(token, now)
        principal = principal_of(claims, self._settings)
        # Headers are ASCII; names may be in any script.
        found = Known(principal, json.dumps(principal.model_dump(mode="json")))
        with self._lock:
            self._known[digest] = min(float(claims["exp"]), now + _CACHED_S), key, found
            while len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
        return found, cached is None

    def _verified_claims(self, token: str, now: float) -> tuple[Mapping[str, Any], VerifiedKey]:
        import jwt  # loads cryptography, needed only with an identity provider

        try:
            header = jwt.get_unverified_header(token)
            _check_header(header)
            key = self._keys.verified(token, header.get("kid"), header["alg"])
            claims: dict[str, Any] = jwt.decode(
                token,
                key.key,
                algorithms=[header["alg"]],
                issuer=self._settings.issuer,
                audience=self._settings.audience,
                options={"require": ["exp", "iat", "iss", "aud", "sub"], "verify_exp": False, "verify_nbf": False,
                         "verify_iat": False},
            )  # fmt: skip
        except jwt.MissingRequiredClaimError as cause:
            raise refused(f"the claim {cause.claim} is missing") from cause
        except jwt.InvalidIssuerError as cause:
            raise refused(
                f"iss is not {self._settings.issuer!r}: another provider issued the token"
            ) from cause
        except jwt.InvalidAudienceError as cause:
            raise refused(
                f"aud is not {self._settings.audience!r}: it was issued to another client"
            ) from cause
        except (jwt.InvalidTokenError, ValueError, TypeError, RecursionError) as cause:
            raise refused(f"it cannot be read ({cause})") from cause
        _check_kind(claims)
        _check_times(claims, now)
        self._check_party(claims)
        return claims, key

    def _check_party(self, claims: Mapping[str, Any]) -> None:
        """Refuse a token whose `azp` is another client, or that has several audiences and no `azp`."""
        audience, wanted = claims["aud"], self._settings.audience
        has_several = isinstance(audience, list) and len(audience) > 1
        if "azp" in claims and claims["azp"] != wanted:
            raise refused(f"azp is {claims['azp']!r}, expected {wanted!r}: it was issued to another client")
        if has_several and "azp" not in claims:
            raise refused(f"aud names several clients, and azp none of them, expected {wanted!r}")


def _check_header(header: Mapping[str, Any]) -> None:
    """Refuse other algorithms and token types, and headers that ID tokens do not have."""
    if header.get("alg") not in ALGORITHMS:
        raise refused(f"alg is {header.get('alg')!r}, expected a signature: {', '.join(ALGORITHMS)}")
    kind = header.get("typ", "JWT")
    if not isinstance(kind, str) or kind.upper() != "JWT":
        raise refused(f"typ is {kind!r}, expected JWT: it is another kind of token than an ID token")
    for name in ("crit", "b64", "zip"):
        if name in header:
            raise refused(f"its header has {name}, which ID tokens must not have")


def _check_kind(claims: Mapping[str, Any]) -> None:
    """Refuse access, refresh and logout tokens: providers sign them with the same keys."""
    for name, wanted in (("typ", "ID"), ("token_use", "id")):
        if name in claims and claims[name] != wanted:
            raise refused(
                f"{name} is {claims[name]!r}, expected {wanted!r}: have the proxy hand on the ID token, not another one"
            )
    events = claims.get("events")
    if isinstance(events, Mapping) and _LOGOUT in events:
        raise refused("it is a logout token, not an ID token")
    subject = claims["sub"]
    if not isinstance(subject, str) or not 0 < len(subject) <= _MAX_SUBJECT_LENGTH:
        raise refused(f"sub must be a text of 1 to {_MAX_SUBJECT_LENGTH} characters")


def _check_times(claims: Mapping[str, Any], now: float) -> None:
    """Refuse expired and future tokens. PyJWT's own check reads the system clock, which tests cannot set."""
    expires, issued, begins = (_time(claims, name) for name in ("exp", "iat", "nbf"))
    if now > expires + _LEEWAY_S:
        raise refused(f"exp was {now - expires:.0f} s ago: sign in again")
    for name, time_s in (("iat", issued), ("nbf", begins)):
        if now < time_s - _LEEWAY_S:
            raise refused(f"{name} is in {time_s - now:.0f} s: the clocks of provider and cluster differ")
    if expires < issued:
        raise refused("exp is before iat: the token was never valid")


def _time(claims: Mapping[str, Any], name: str) -> float:
    """Return a claim in seconds since the epoch. Refuse NaN, which Python's JSON parser accepts."""
    found = claims.get(name, 0)
    if isinstance(found, int | float) and not isinstance(found, bool) and abs(found) < 1e15:
        return float(found)
    raise refused(f"{name} must be a number of seconds since 1970")


def principal_of(claims: Mapping[str, Any], settings: Oidc) -> Principal:
    """Return the user that verified claims describe. Pure.

    Raises:
        IdTokenError: a claim is missing, or no group of the user has a role; the message names it.
    """
    name = claims.get(settings.name_claim)
    if not isinstance(name, str) or not name.strip():
        raise refused(
            f"the claim {settings.name_claim} is missing: it must contain the name (auth.oidc.nameClaim)"
        )
    if settings.name_claim == "email" and claims.get("email_verified", True) is not True:
        raise refused(f"email_verified is not true: anybody could claim to be {name!r}")
    groups = claims.get(settings.groups_claim)
    if isinstance(groups, str):
        groups = [groups]
    if not isinstance(groups, list) or not all(isinstance(each, str) for each in groups):
        raise refused(
            f"the claim {settings.groups_claim} is missing: it must contain the groups (auth.oidc.groupsClaim). Make "
            "the provider add it to ID tokens"
        )
    rights = [settings.groups[each] for each in dict.fromkeys([*groups, "*"]) if each in settings.groups]
    if not rights:
        raise refused(
            f"none of the groups in the claim {settings.groups_claim} has a role here (auth.oidc.groups): "
            f"{', '.join(groups[:10]) or 'the claim is empty'}"
        )
    role = max((each.role for each in rights), key=RANK.index)
    projects = dict.fromkeys(project for each in rights for project in each.projects)
    if reserved := reserved_names.reason(name):
        raise refused(
            f"the claim {settings.name_claim}: {reserved}; or use another claim (auth.oidc.nameClaim)"
        )
    try:
        return Principal(
            name=" ".join(name.split()),
            role=Role(role),
            projects=tuple(projects),
            id=_identity(str(claims["iss"]), str(claims["sub"])),
        )
    except ValidationError as cause:
        raise refused(f"the claim {settings.name_claim}: {validation_summary(cause.errors())}") from cause


def _identity(issuer: str, subject: str) -> str:
    """Hash `iss` and `sub`. Only this pair is unique and never reassigned (OpenID Connect Core, 5.7)."""
    return f"oidc:{hashlib.sha256(json.dumps([issuer, subject]).encode()).hexdigest()[:32]}"
