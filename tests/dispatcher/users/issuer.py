"""A local identity provider with its own keys, a discovery document and signed ID tokens."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from importlib.util import find_spec
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from dispatcher.settings import GroupRights, Oidc
from tests.dispatcher.stories import NOW
from tests.http_server import HttpServer

if find_spec("jwt") is None and not os.environ.get("CI"):
    pytest.skip("these tests need PyJWT", allow_module_level=True)
import jwt

from tests.waiting import HANG_S

__all__ = ["AUDIENCE", "Issuer", "issuing", "jwt"]

AUDIENCE = "cerebro"


def _key(bits: int = 2048) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


@dataclass(kw_only=True)
class Issuer:
    """Sign ID tokens; serve the keys unless `is_away` is true."""

    address: str
    keys: dict[str, rsa.RSAPrivateKey] = field(default_factory=lambda: {"first": _key()})
    changes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Fields to change in the published entry of a key; `None` removes a field."""
    is_away: bool = False
    requests: list[str] = field(default_factory=list)

    def add(self, identity: str, bits: int = 2048) -> None:
        """Rotate to a new key."""
        self.keys[identity] = _key(bits)

    def token(
        self,
        *,
        key: str = "first",
        without: str = "",
        algorithm: str = "RS256",
        header: dict[str, Any] | None = None,
        **claims: Any,
    ) -> str:
        """Sign an ID token."""
        given: dict[str, Any] = {
            "iss": self.address,
            "aud": AUDIENCE,
            "sub": "1",
            "exp": NOW + 600,
            "iat": NOW,
            "email": "ada@example.org",
            "email_verified": True,
            "groups": ["researchers"],
            **claims,
        }
        given.pop(without, None)
        return jwt.encode(given, self.keys[key], algorithm=algorithm, headers={"kid": key, **(header or {})})

    def document(self, path: str) -> dict[str, Any] | None:
        """Return the discovery document or the keys."""
        if path == "/.well-known/openid-configuration":
            return {"issuer": self.address, "jwks_uri": f"{self.address}/keys"}
        if path != "/keys":
            return None
        algorithm = jwt.algorithms.RSAAlgorithm
        keys = []
        for name, key in self.keys.items():
            each = {
                **json.loads(algorithm.to_jwk(key.public_key())),
                "kid": name,
                "use": "sig",
                "alg": "RS256",
            }
            each |= self.changes.get(name, {})
            keys.append({field: value for field, value in each.items() if value is not None})
        return {"keys": [*keys, {"kty": "oct", "kid": "secret", "k": "c2VjcmV0"}, {"kty": "new", "kid": "x"}]}

    def oidc(self, **changes: Any) -> Oidc:
        """Make OIDC settings that trust this issuer."""
        groups = {
            "researchers": GroupRights.model_validate({"role": "member", "projects": ["vision"]}),
            "writers": GroupRights.model_validate({"role": "member", "projects": ["text"]}),
            "readers": GroupRights.model_validate({"role": "viewer"}),
            "root": GroupRights.model_validate({"role": "admin"}),
        }
        values: dict[str, Any] = {"issuer": self.address, "audience": AUDIENCE, "groups": groups}
        return Oidc(**(values | changes))


@contextmanager
def issuing() -> Iterator[Issuer]:
    """Serve an issuer on a free port."""
    issuers: list[Issuer] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            issuer = issuers[0]
            issuer.requests.append(self.path)
            found = None if issuer.is_away else issuer.document(self.path)
            self.send_response(503 if issuer.is_away else 200 if found else 404)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HttpServer(("127.0.0.1", 0), Handler)
    issuers.append(Issuer(address=f"http://127.0.0.1:{server.server_port}"))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield issuers[0]
    finally:
        server.shutdown()
        server.server_close()
        thread.join(HANG_S)
