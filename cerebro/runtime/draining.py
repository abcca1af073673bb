"""The end of a web service: no new connections, no new waiting, what is asked is answered, then the process ends.

For the two services that run on waitress, which by itself drops its connections at SIGTERM. Uses of it what its
`create_server` documents (`map`, the sockets of a server) and the attributes named in `_Socket`; does not import it,
because only services serve HTTP.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, MutableMapping
from typing import Any, Protocol

log = logging.getLogger(__name__)

GRACE_S = 8.0
"""Longest time for answering. Kubernetes gives a pod 30 s by default; clients try again elsewhere."""

_LOOK_S = 0.05


class _Server(Protocol):
    def run(self) -> None: ...

    def answer_waiting(self) -> None: ...


class Draining:
    """Shared by the threads of a service; `is_wanted` turns true once and stays so."""

    def __init__(self) -> None:
        self._wanted = threading.Event()

    @property
    def is_wanted(self) -> bool:
        """Whether the service ends: blocking reads are to answer with what they have."""
        return self._wanted.is_set()

    def begin(self) -> None:
        """Begin. Safe in a signal handler; twice is safe."""
        self._wanted.set()

    def wait(self) -> None:
        """Wait until it begins."""
        self._wanted.wait()


def run(
    server: _Server, sockets: MutableMapping[int, Any], draining: Draining, grace_s: float = GRACE_S
) -> None:
    """Serve until SIGTERM or SIGINT, then drain and end the process with status 0.

    Args:
        server: of `cerebro.runtime.serving.create_server`.
        sockets: its sockets by descriptor; touched by the server's own loop only.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: draining.begin())
    threading.Thread(
        target=_drain, args=(server, sockets, draining, grace_s), name="draining", daemon=True
    ).start()
    server.run()


def _drain(server: _Server, sockets: MutableMapping[int, Any], draining: Draining, grace_s: float) -> None:
    draining.wait()
    server.answer_waiting()
    deadline = time.monotonic() + grace_s
    left = _in_loop(sockets, _close_idle)
    while left and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        left = _in_loop(sockets, _close_idle)
    if left:
        log.warning("%s connections were still busy after %g s", left, grace_s)
    # Threads that wait for clients are daemons, and nothing needs saving.
    os._exit(0)


def _in_loop(sockets: MutableMapping[int, Any], look: Callable[[MutableMapping[int, Any]], int]) -> int:
    """Call `look` in the server's loop, which alone may touch sockets; what it returned, or 1 if the loop is stuck."""
    trigger = next((one for one in list(sockets.values()) if hasattr(one, "thunks")), None)
    if trigger is None:
        return 0
    found: list[int] = []
    done = threading.Event()

    def thunk() -> None:
        found.append(look(sockets))
        done.set()

    trigger.pull_trigger(thunk)
    done.wait(1.0)
    return found[0] if found else 1


def _close_idle(sockets: MutableMapping[int, Any]) -> int:
    """Close listeners and connections that nobody waits on; how many connections are left."""
    left = 0
    for one in list(sockets.values()):
        if hasattr(one, "active_channels"):
            one.del_channel()
            one.socket.close()
        elif hasattr(one, "requests"):
            is_busy = one.requests or one.request is not None or one.total_outbufs_len
            if not is_busy:
                one.handle_close()
            left += bool(is_busy)
    return left
