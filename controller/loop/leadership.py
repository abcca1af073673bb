"""Giving the leadership back at the end of a process, so that a standby need not wait for the lease to run out."""

from __future__ import annotations

import contextlib
import threading

from cerebro.contract import api
from cerebro.errors import CerebroError
from cerebro.runtime.kvs import KvsClient

SOON_S = 0.001
"""The lease that is left: the shortest there is."""

_LIMIT_S = 1.0
"""A store that is slow or away is not waited for: the lease runs out by itself."""


def fence(term: int) -> dict[str, str]:
    """Headers of a write in this term, 0 for none: the store refuses it once another term has begun."""
    return {api.TERM: str(term)} if term else {}


def resign(server: str, token: str, holder: str, process: str) -> None:
    """End the leadership of this process now; changes nothing while another one leads. Returns within a second or so.

    Safe in a signal handler: connection and thread are its own, so no lock that the interrupted code may hold is
    waited for.

    Args:
        server, token: as for `KvsClient`.
        holder, process: as in `Settings`.
    """

    def give_back() -> None:
        kvs = KvsClient(server, token, retry_for_s=0.0, timeout_s=_LIMIT_S)
        with contextlib.suppress(CerebroError):
            kvs.lead(holder, SOON_S, process=process)

    thread = threading.Thread(target=give_back, name="resign", daemon=True)
    thread.start()
    thread.join(_LIMIT_S)
