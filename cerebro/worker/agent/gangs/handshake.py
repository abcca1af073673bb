"""Mutual authentication of two workers: each proves that it knows the cluster's token without sending it.

`GangEndpoint` uses `call` on the connecting side and `answer` on the listening side, once per connection. Later traffic
is not encrypted, like all traffic between the pods.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import time
from typing import Any

_NONCE = 32
"""Bytes of each side's nonce; a proof has the same length."""
_MOST = 4096
"""Maximum bytes of the caller's introduction."""
LIMIT_S = 10.0
"""Seconds for the entire handshake, so that a silent caller cannot block."""


class HandshakeError(Exception):
    """The other side does not know the token, or is no worker."""


def call(end: socket.socket, token: str, hello: dict[str, Any]) -> None:
    """Introduce this side after connecting.

    Raises:
        HandshakeError: the other side is not in this cluster.
        OSError: the connection is closed.
    """
    deadline = time.monotonic() + LIMIT_S
    end.settimeout(LIMIT_S)
    theirs, ours = _exactly(end, _NONCE, deadline), secrets.token_bytes(_NONCE)
    said = json.dumps(hello).encode()
    end.sendall(ours + _proof(token, b"call", theirs, ours, said) + len(said).to_bytes(4, "big") + said)
    if not hmac.compare_digest(_exactly(end, _NONCE, deadline), _proof(token, b"answer", theirs, ours, said)):
        raise HandshakeError("it does not know this cluster's token")
    end.settimeout(None)


def answer(end: socket.socket, token: str) -> dict[str, Any]:
    """Return the caller's introduction, as the side that accepted the connection.

    Raises:
        HandshakeError: the other side is not in this cluster.
        OSError: the connection is closed.
    """
    deadline = time.monotonic() + LIMIT_S
    end.settimeout(LIMIT_S)
    ours = secrets.token_bytes(_NONCE)
    end.sendall(ours)
    theirs, proof = _exactly(end, _NONCE, deadline), _exactly(end, _NONCE, deadline)
    length = int.from_bytes(_exactly(end, 4, deadline), "big")
    said = _exactly(end, length, deadline) if length <= _MOST else b""
    if not hmac.compare_digest(proof, _proof(token, b"call", ours, theirs, said)):
        raise HandshakeError("it does not know this cluster's token")
    try:
        hello = json.loads(said)
    except ValueError as error:
        raise HandshakeError(f"its introduction is not JSON: {error}") from error
    if not isinstance(hello, dict):
        raise HandshakeError("its introduction is not a JSON object")
    end.sendall(_proof(token, b"answer", ours, theirs, said))
    end.settimeout(None)
    return hello


def _proof(token: str, side: bytes, first: bytes, second: bytes, said: bytes) -> bytes:
    """Prove knowledge of the token, for one side of one connection."""
    return hmac.digest(token.encode(), b"|".join((side, first, second, said)), "sha256")


def _exactly(end: socket.socket, count: int, deadline: float) -> bytes:
    found = b""
    while len(found) < count:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise HandshakeError(f"it did not say who it is within {LIMIT_S:g} s")
        end.settimeout(left_s)
        part = end.recv(count - len(found))
        if not part:
            raise HandshakeError("it ended the connection")
        found += part
    return found
