"""Tickets that let users signed in at the dispatcher into TensorBoard, which has no sign-in.

The dispatcher (`access.sign_in`) issues tickets, and the guard (`cerebro.local.tensorboard`) checks them. Both know a
key derived from the cluster's token by a one-way function. The dispatcher redirects a signed-in browser with a ticket
in the address, valid for 60 s. The guard exchanges it for a pass, a cookie valid for 12 hours. Both consist of an
expiry and its signature, so they are not stored, and cannot be revoked. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import StrEnum

PARAMETER = "ticket"
"""Name of the ticket in an address."""


class Kind(StrEnum):
    """Kind of signed text. The signature covers it, so one kind is never accepted as another."""

    TICKET = "ticket"  # in an address, where histories and logs keep it
    PASS = "pass"  # in a cookie


LASTS_S = {Kind.TICKET: 60, Kind.PASS: 12 * 3600}
"""Seconds of validity."""


def cookie_name(port: int | str | None) -> str:
    """Return the name of the cookie with the pass, for a guard at this port."""
    return f"cerebro-tensorboard-{port or ''}"


def key_of(token: str) -> bytes:
    """Derive the signing key from the cluster's token."""
    return hmac.new(token.encode(errors="surrogatepass"), b"cerebro tensorboard 1", hashlib.sha256).digest()


def issue(key: bytes, kind: Kind, now: float) -> str:
    """Return a new ticket or pass, valid from `now` (seconds since the epoch) for `LASTS_S`."""
    ends = str(int(now) + LASTS_S[kind])
    return f"{ends}.{_signature(key, kind, ends)}"


def holds(key: bytes, kind: Kind, ticket: str, now: float) -> bool:
    """Return True if `ticket` was issued with this key, as this kind, and has not expired."""
    ends, _, signature = ticket.partition(".")
    is_ours = hmac.compare_digest(
        signature.encode(errors="surrogatepass"), _signature(key, kind, ends).encode()
    )
    return is_ours and now < int(ends)


def _signature(key: bytes, kind: Kind, ends: str) -> str:
    return hmac.new(key, f"{kind} {ends}".encode(errors="surrogatepass"), hashlib.sha256).hexdigest()
