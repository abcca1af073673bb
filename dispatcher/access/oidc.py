"""Who a browser is, by the ID token that an authenticating proxy hands on (OpenID Connect Core 1.0, section 3.1.3.7).

The token itself is believed, not the proxy: signature, issuer, audience and expiry are checked here, so that a header
that somebody else sets is worth nothing. Groups of the identity provider become a role and projects, by the settings.
The provider's keys are kept; while it is away, what they have signed goes on being believed until it expires.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import urllib3
from pydantic import ValidationError

from cerebro.contract.identity import RANK, Principal, Role
from cerebro.errors import StoreUnavailableError, UnauthorizedError, found_in
from dispatcher.access.identities import Known
from dispatcher.settings import Oidc

if TYPE_CHECKING:
    import jwt

_log = logging.getLogger(__name__)

_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Of signatures with a public key. Without ``none``, and without HMAC, whose key would be a secret that we have not."""
_LEEWAY_S = 30
_ASK_AGAIN_S = 30.0
"""Keys are asked for at most this often, however many tokens name one that is not known."""
_KEYS_FRESH_S = 3600.0
_ANSWER_S = 5.0
_MOST_BYTES = 1 << 20
_LONGEST = 16_000
_MAX_KNOWN = 2_000


class IdTokenError(UnauthorizedError):
    """An ID token that is not believed: the message says why, for whoever set the proxy up."""


class OidcUnavailableError(StoreUnavailableError):
    """The identity provider does not answer, and its keys were never read."""


def is_jwt(text: str) -> bool:
    """Whether it looks like an ID token: tokens of ours never do."""
    return text.startswith("ey") and text.count(".") == 2


class IdTokens:
    """Checks ID tokens. Safe for several threads.

    Args:
        clock: seconds since the epoch. monotonic: seconds that never go back.
    """

    def __init__(
        self,
        settings: Oidc,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._clock = settings, clock
        self._keys = _Keys(settings, monotonic)
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, tuple[float, Known]] = OrderedDict()

    def of(self, token: str) -> tuple[Known, bool]:
        """Whose ID token it is, and whether it is seen for the first time.

        Raises:
            IdTokenError: it is not believed: says which claim, what was expected and what was found.
            OidcUnavailableError: the provider is away, and its keys are not known.
        """
        if len(token) > _LONGEST:
            raise _refused(f"the ID token has {len(token)} characters, expected {_LONGEST} at most")
        digest, now = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest(), self._clock()
        with self._lock:
            until, known = self._known.get(digest, (0.0, None))
        if known is not None and now < until:
            return known, False
        claims = self._checked(token, now)
        principal = principal_of(claims, self._settings)
        # In ASCII, as a header is: a name may be in any script.
        found = Known(principal, json.dumps(principal.model_dump(mode="json")))
        with self._lock:
            self._known[digest] = min(float(claims["exp"]), now + _KEYS_FRESH_S), found
            while len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
        return found, True

    def _checked(self, token: str, now: float) -> Mapping[str, Any]:
        """The claims of a token that is believed."""
        import jwt  # with its cryptography, where there is a provider alone

        try:
            header = jwt.get_unverified_header(token)
            algorithm = header.get("alg")
            if algorithm not in _ALGORITHMS:
                raise _refused(f"alg is {algorithm!r}, expected a signature: {', '.join(_ALGORITHMS)}")
            key = self._keys.of(header.get("kid"))
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=list(_ALGORITHMS),
                issuer=self._settings.issuer,
                audience=self._settings.audience,
                leeway=_LEEWAY_S,
                options={"require": ["exp", "iss", "aud", "sub"], "verify_exp": False, "verify_nbf": False,
                         "verify_iat": False},
            )  # fmt: skip
        except jwt.MissingRequiredClaimError as cause:
            raise _refused(f"the claim {cause.claim} is missing") from cause
        except jwt.InvalidIssuerError as cause:
            raise _refused(f"iss is not {self._settings.issuer!r}: it is another provider's") from cause
        except jwt.InvalidAudienceError as cause:
            raise _refused(
                f"aud is not {self._settings.audience!r}: it was made for another client"
            ) from cause
        except jwt.InvalidSignatureError as cause:
            raise _refused("its signature is wrong: no key of the provider has signed it") from cause
        except (jwt.InvalidTokenError, ValueError, TypeError) as cause:
            raise _refused(f"it cannot be read ({cause})") from cause
        self._in_time(claims, now)
        audience, party = claims["aud"], claims.get("azp", self._settings.audience)
        if isinstance(audience, list) and len(audience) > 1 and party != self._settings.audience:
            raise _refused(f"azp is {party!r}, expected {self._settings.audience!r}")
        return claims

    def _in_time(self, claims: Mapping[str, Any], now: float) -> None:
        """By our own clock, which tests turn."""
        expires, begins = claims["exp"], claims.get("nbf", 0)
        if not isinstance(expires, int | float) or not isinstance(begins, int | float):
            raise _refused("exp and nbf must be numbers")
        if now > expires + _LEEWAY_S:
            raise _refused(f"exp was {now - expires:.0f} s ago: sign in again")
        if now < begins - _LEEWAY_S:
            raise _refused(f"nbf is in {begins - now:.0f} s: the clocks of provider and cluster differ")


def principal_of(claims: Mapping[str, Any], settings: Oidc) -> Principal:
    """Who the claims of a checked token are about. Pure.

    Raises:
        IdTokenError: a claim is missing, or none of the groups is known here: names it.
    """
    name = claims.get(settings.name_claim)
    if not isinstance(name, str) or not name.strip():
        raise _refused(
            f"the claim {settings.name_claim} is missing, which has the name (auth.oidc.nameClaim)"
        )
    if settings.name_claim == "email" and claims.get("email_verified", True) is not True:
        raise _refused(f"email_verified is not true: anybody could have said to be {name!r}")
    groups = claims.get(settings.groups_claim)
    if isinstance(groups, str):
        groups = [groups]
    if not isinstance(groups, list) or not all(isinstance(each, str) for each in groups):
        raise _refused(
            f"the claim {settings.groups_claim} is missing, which has the groups (auth.oidc.groupsClaim): have the "
            "provider put it into ID tokens"
        )
    rights = [settings.groups[each] for each in dict.fromkeys([*groups, "*"]) if each in settings.groups]
    if not rights:
        raise _refused(
            f"none of the groups in the claim {settings.groups_claim} has a role here (auth.oidc.groups): "
            f"{', '.join(groups[:10]) or 'there is none'}"
        )
    role = max((each.role for each in rights), key=RANK.index)
    projects = dict.fromkeys(project for each in rights for project in each.projects)
    try:
        return Principal(name=" ".join(name.split()), role=Role(role), projects=tuple(projects))
    except ValidationError as cause:
        raise _refused(f"the claim {settings.name_claim}: {found_in(cause.errors())}") from cause


class _Keys:
    """The provider's keys (JSON Web Key Set). Safe for several threads; one asks for them at a time."""

    def __init__(self, settings: Oidc, monotonic: Callable[[], float]) -> None:
        self._settings, self._monotonic = settings, monotonic
        self._http = urllib3.PoolManager(maxsize=2, retries=False, timeout=urllib3.Timeout(_ANSWER_S))
        self._lock = threading.Lock()
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._read, self._asked = float("-inf"), float("-inf")
        self._problem = ""

    def of(self, identity: str | None) -> jwt.PyJWK:
        """The key of that id."""
        with self._lock:
            now = self._monotonic()
            is_old = identity not in self._keys or now > self._read + _KEYS_FRESH_S
            if is_old and now > self._asked + _ASK_AGAIN_S:
                self._asked = now
                self._ask(now)
            if identity in self._keys:
                return self._keys[identity]
            if self._problem:
                raise OidcUnavailableError(
                    f"the keys of {self._settings.issuer} cannot be read ({self._problem}): people sign in again when "
                    "it answers; the cluster's own token opens the page meanwhile"
                )
        raise _refused(f"kid is {identity!r}, which is no key of {self._settings.issuer}")

    def _ask(self, now: float) -> None:
        import jwt

        try:
            address = self._settings.jwks_url or self._discovered()
            found = {}
            for each in self._json(address).get("keys", []):
                if each.get("kty") == "oct":
                    continue  # a secret of theirs: nothing is signed with it for us
                try:
                    key = jwt.PyJWK.from_dict(each)
                except jwt.PyJWTError:
                    continue  # of a kind that we cannot check
                found[each.get("kid")] = key
        except (urllib3.exceptions.HTTPError, ValueError, AttributeError, TypeError) as error:
            self._problem = f"{type(error).__name__}: {error}"[:300]
            _log.warning("oidc keys not read issuer=%s why=%s", self._settings.issuer, self._problem)
            return
        self._keys, self._read, self._problem = found, now, ""

    def _discovered(self) -> str:
        address = f"{self._settings.issuer.rstrip('/')}/.well-known/openid-configuration"
        found = self._json(address).get("jwks_uri")
        if not isinstance(found, str):
            raise ValueError(f"{address} names no jwks_uri")
        return found

    def _json(self, address: str) -> dict[str, Any]:
        answer = self._http.request("GET", address, preload_content=False)
        try:
            content = answer.read(_MOST_BYTES)
        finally:
            answer.release_conn()
        if answer.status != 200:
            raise ValueError(f"{address} answered {answer.status}")
        found = json.loads(content)
        if not isinstance(found, dict):
            raise ValueError(f"{address} answered no object")
        return found


def _refused(why: str) -> IdTokenError:
    return IdTokenError(f"the proxy's ID token is not believed: {why}")
