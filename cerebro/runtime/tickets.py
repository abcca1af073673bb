"""How the dispatcher lets those whom it has signed in into a program beside it that knows no sign-in: TensorBoard.

Both know a key that is derived from the cluster's token, and cannot be turned back into it. The dispatcher sends a
signed-in browser on with a ticket in the address, which holds for a minute; for it the program's guard
(`cerebro.local.tensorboard`) gives the browser a pass, a cookie that holds for a long working day. Both are an end and
a signature over it, so nobody stores any. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import StrEnum

PARAMETER = "ticket"
"""Name of the ticket in an address."""


class Kind(StrEnum):
    """What is signed. One is never taken for the other."""

    TICKET = "ticket"  # in an address, where histories and logs keep it
    PASS = "pass"  # in a cookie


LASTS_S = {Kind.TICKET: 60, Kind.PASS: 12 * 3600}


def cookie_name(port: int | str | None) -> str:
    """Of the cookie with the pass, of a guard at this port."""
    return f"cerebro-tensorboard-{port or ''}"


def key_of(token: str) -> bytes:
    """What signs and checks, of the cluster's token."""
    return hmac.new(token.encode(errors="surrogatepass"), b"cerebro tensorboard 1", hashlib.sha256).digest()


def issue(key: bytes, kind: Kind, now: float) -> str:
    """A new one, which holds from `now` (seconds since the epoch) for `LASTS_S`."""
    ends = str(int(now) + LASTS_S[kind])
    return f"{ends}.{_signature(key, kind, ends)}"


def holds(key: bytes, kind: Kind, given: str, now: float) -> bool:
    """Whether `given` was issued with this key, as this kind, and has not ended."""
    ends, _, signature = given.partition(".")
    is_ours = hmac.compare_digest(
        signature.encode(errors="surrogatepass"), _signature(key, kind, ends).encode()
    )
    return is_ours and now < int(ends)


def _signature(key: bytes, kind: Kind, ends: str) -> str:
    return hmac.new(key, f"{kind} {ends}".encode(errors="surrogatepass"), hashlib.sha256).hexdigest()
