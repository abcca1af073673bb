"""Resignation when a process ends, so that a standby need not wait for the lease."""

from __future__ import annotations

import contextlib
import threading

from cerebro.contract.rest import api
from cerebro.errors import CerebroError
from cerebro.runtime.kvs.client import KvsClient

SOON_S = 0.001
"""Remaining lease in seconds: the shortest possible."""

_LIMIT_S = 1.0
"""Maximum seconds to wait for the store; otherwise the lease expires by itself."""


def fence(term: int) -> dict[str, str]:
    """Return headers that fence a write by this term; {} for 0. The store refuses them in a later term."""
    return {api.TERM: str(term)} if term else {}


def resign(server: str, token: str, holder: str, process: str) -> None:
    """End the leadership of this process; no effect while another one leads.

    Returns within about a second. Safe in a signal handler: it has its own connection and thread, so it waits
    for no lock of the interrupted code.

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
