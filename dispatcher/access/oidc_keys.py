"""Public keys of an identity provider (JWKS, RFC 7517), and verification of signatures.

Only `oidc.IdTokens` uses it. A key verifies only signatures of its algorithm, and only if it is long enough. Key sets
are read over HTTP every 5 minutes (`FRESH_S`), so a withdrawn key fails soon. While the provider is away, its last
keys stay valid. The claims in a token are checked in `oidc`.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import urllib3

from cerebro.errors import StoreUnavailableError, UnauthorizedError
from cerebro.runtime.web import proxies
from dispatcher.settings import Oidc

if TYPE_CHECKING:
    import jwt

_log = logging.getLogger(__name__)

_KINDS = {
    "RS256": "RSA", "RS384": "RSA", "RS512": "RSA", "PS256": "RSA", "PS384": "RSA", "PS512": "RSA",
    "ES256": "P-256", "ES384": "P-384", "ES512": "P-521", "EdDSA": "OKP",
}  # fmt: skip
ALGORITHMS = tuple(_KINDS)
"""Signature algorithms with a public key. Excludes ``none``, and HMAC because the dispatcher has no shared secret.
"""
MIN_RSA_BITS = 2048
"""RFC 7518, section 3.3."""
FRESH_S = 300.0
"""Seconds between two reads of the key set, and so the longest time that a withdrawn key stays valid."""
_RETRY_S = 30.0
"""Minimum seconds between two requests for keys, however often tokens name unknown keys."""
_ANSWER_S = 5.0
_MAX_BYTES = 1 << 20
_MAX_KEYS = 100
_MAX_KEYS_TRIED = 10
"""Maximum number of keys to try for a token without a key id."""
_EDWARDS = ("Ed25519", "Ed448")


class IdTokenError(UnauthorizedError):
    """An ID token was refused. The message has the reason, for the admin of the proxy."""


class OidcUnavailableError(StoreUnavailableError):
    """The identity provider does not answer, and its keys were never read."""


def refused(why: str) -> IdTokenError:
    """Create the error for a refused token."""
    return IdTokenError(f"the proxy's ID token is not believed: {why}")


@dataclass(frozen=True, kw_only=True)
class VerifiedKey:
    """A key that has signed a token.

    Attributes:
        name: the key as JSON, which identifies it in a later key set.
    """

    name: str
    key: jwt.PyJWK


class Keys:
    """Key set of one provider. Safe for several threads: one thread reads, others use cached keys without waiting.

    Args:
        monotonic: seconds that never go back.
    """

    def __init__(self, settings: Oidc, monotonic: Callable[[], float]) -> None:
        self._settings, self._monotonic = settings, monotonic
        self._http = proxies.pool(
            settings.jwks_url or settings.issuer,
            maxsize=2,
            retries=False,
            timeout=urllib3.Timeout(_ANSWER_S),
        )
        self._reading = threading.Lock()
        self._keys: dict[str, Mapping[str, Any]] = {}
        self._read, self._requested = float("-inf"), float("-inf")
        self._problem = ""

    def has(self, key: VerifiedKey) -> bool:
        """True if the provider still publishes the key."""
        self._refresh(is_missing=False)
        return key.name in self._keys

    def verified(self, token: str, identity: object, algorithm: str) -> VerifiedKey:
        """Return the key that has signed a token.

        Args:
            identity: the ``kid`` of the token's header, if present.
            algorithm: the ``alg`` of the token's header, one of `ALGORITHMS`.

        Raises:
            IdTokenError: no key of the provider has signed the token.
            OidcUnavailableError: the provider is away and the key is not cached.
        """
        import jwt

        found = self._with_id(identity)
        self._refresh(is_missing=not found)
        if not (found := self._with_id(identity)):
            if self._problem:
                raise OidcUnavailableError(
                    f"the keys of {self._settings.issuer} cannot be read ({self._problem}): people can sign in when "
                    "it answers; until then use the cluster's own token"
                )
            raise refused(f"kid is {identity!r}, which is not a key of {self._settings.issuer}")
        unfit = ""
        for name, each in list(found.items())[:_MAX_KEYS_TRIED]:
            if why := why_unfit(each, algorithm):
                unfit = why
                continue
            try:
                key = jwt.PyJWK.from_dict(dict(each), algorithm)
                jwt.api_jws.decode(token, key, algorithms=[algorithm])
                return VerifiedKey(name=name, key=key)
            except jwt.InvalidSignatureError:
                continue
            except (jwt.PyJWTError, ValueError, TypeError) as error:
                unfit = f"it cannot be used ({error})"
        if unfit:
            raise refused(f"the key {identity!r} of {self._settings.issuer} does not sign ID tokens: {unfit}")
        raise refused("its signature is wrong: no key of the provider has signed the token")

    def _with_id(self, identity: object) -> dict[str, Mapping[str, Any]]:
        """Return the keys with this id, or all keys for a token without an id."""
        keys = self._keys
        return {name: each for name, each in keys.items() if identity is None or each.get("kid") == identity}

    def _refresh(self, *, is_missing: bool) -> None:
        """Read the keys again if they are old or one is missing. Only a missing key waits for another thread's read."""
        now = self._monotonic()
        if not (is_missing or now > self._read + FRESH_S) or now <= self._requested + _RETRY_S:
            if is_missing and self._reading.locked():
                with self._reading:  # another thread is reading them
                    return
            return
        if not self._reading.acquire(blocking=is_missing):
            return
        try:
            if now > self._requested + _RETRY_S:
                self._requested = now
                self._read_keys(now)
        finally:
            self._reading.release()

    def _read_keys(self, now: float) -> None:
        try:
            address = self._settings.jwks_url or self._discovered()
            listed = self._json(address).get("keys")
            if not isinstance(listed, list):
                raise ValueError(f"{address} has no keys")
            found = {json.dumps(each, sort_keys=True): each for each in _public(listed[:_MAX_KEYS])}
        except (urllib3.exceptions.HTTPError, ValueError, AttributeError, TypeError, RecursionError) as error:
            self._problem = f"{type(error).__name__}: {error}"[:300]
            _log.warning("oidc keys not read issuer=%s why=%s", self._settings.issuer, self._problem)
            return
        self._keys, self._read, self._problem = found, now, ""

    def _discovered(self) -> str:
        issuer = self._settings.issuer
        address = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
        document = self._json(address)
        if document.get("issuer") != issuer:
            raise ValueError(f"{address} names the issuer {document.get('issuer')!r}, expected {issuer!r}")
        found = document.get("jwks_uri")
        if not isinstance(found, str):
            raise ValueError(f"{address} names no jwks_uri")
        if urlsplit(issuer).scheme == "https" and urlsplit(found).scheme != "https":
            raise ValueError(f"{address} names {found}, expected an address with https, as the issuer has")
        return found

    def _json(self, address: str) -> dict[str, Any]:
        answer = self._http.request("GET", address, preload_content=False)
        try:
            content = answer.read(_MAX_BYTES)
        finally:
            answer.release_conn()
        if answer.status != 200:
            raise ValueError(f"{address} answered {answer.status}")
        found = json.loads(content)
        if not isinstance(found, dict):
            raise ValueError(f"{address} did not answer with a JSON object")
        return found


def why_unfit(key: Mapping[str, Any], algorithm: str) -> str:
    """Return the reason why a key cannot verify an algorithm, or an empty text. Pure."""
    if key.get("use", "sig") != "sig":
        return f"its use is {key['use']!r}, expected 'sig'"
    operations = key.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        return f"its key_ops are {operations!r}, expected 'verify' in the list"
    if key.get("alg", algorithm) != algorithm:
        return f"its alg is {key['alg']!r}, and the token's is {algorithm!r}"
    kind = _KINDS[algorithm]
    has = key.get("crv") if key.get("kty") == "EC" else key.get("kty")
    if has != kind or (kind == "OKP" and key.get("crv") not in _EDWARDS):
        return f"its type is {has!r}, which cannot verify {algorithm}"
    if kind == "RSA" and (bits := _bits(key.get("n"))) < MIN_RSA_BITS:
        return f"it has {bits} bits, expected {MIN_RSA_BITS} or more"
    if kind == "RSA" and _bits(key.get("e")) < 2:
        return "its exponent is 1, so anybody can forge its signatures"
    return ""


def _bits(number: object) -> int:
    from jwt.utils import base64url_decode

    try:
        return int.from_bytes(base64url_decode(number), "big").bit_length() if isinstance(number, str) else 0
    except ValueError:
        return 0


def _public(listed: list[Any]) -> Iterator[Mapping[str, Any]]:
    """Yield public keys only. A set may also list shared secrets, which must never verify ID tokens."""
    for each in listed:
        if isinstance(each, dict) and each.get("kty") in ("RSA", "EC", "OKP"):
            yield each
