"""Liveness probes of services, as in Kubernetes: `ServiceProcess` kills a service that hangs, and restarts it.

A process can hang without ending: stopped by a signal, or in a deadlock. The supervisor sends a probe over
the service's own interface every 3 s. `Watch.check` does not wait for the answer, so hanging services
delay neither each other nor a stop. After six probes without an answer the service counts as hung.

Only consecutive probes that were sent on time count. If the supervisor itself could not run (suspended
laptop, no memory), the services could not either, so they get their full time again. Plain sockets: see
`readiness`.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cerebro.local.supervision.ports import HOST

EVERY_S = 3.0
MAX_MISSED_PROBES = 6
"""Unanswered consecutive probes before a service counts as hung: 18 s. Answers take milliseconds, or 2 s under load."""

_LATE_S = 2 * EVERY_S
_CONNECT_S = 0.2
_ENOUGH = 1 << 12


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A liveness request.

    Attributes:
        address: a path, or host and port.
        words: bytes to send.
        is_well: True if the answer received so far, maybe truncated, is healthy.
    """

    address: str | tuple[str, int]
    words: bytes
    is_well: Callable[[bytes], bool]


def http(port: int) -> Probe:
    """Return a probe that expects status 200 for GET /live (see `cerebro.runtime.web.health`)."""
    words = f"GET /live HTTP/1.0\r\nHost: {HOST}:{port}\r\n\r\n".encode()
    return Probe(
        address=(HOST, port), words=words, is_well=lambda answer: answer.split(b" ")[1:2] == [b"200"]
    )


def redis(path: Path) -> Probe:
    """Return a probe of a database. Any answer counts, because a busy database must not be killed."""
    return Probe(address=str(path), words=b"PING\r\n", is_well=bool)


class Watch:
    """Probes one process of a service; call `check` every `EVERY_S`. Owns a connection; `close` it."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._connection: socket.socket | None = None
        self._checked: float | None = None
        self._silent = 0
        """Checks in a row without a good answer."""

    def check(self, now: float) -> bool:
        """Read the answer and send the next probe. Return True if the process hangs. `now`: monotonic seconds."""
        previous, self._checked = self._checked, now
        if previous is None or now - previous > _LATE_S:
            self._silent = 0
        else:
            answer = self._answer()
            self._silent = 0 if answer and self._probe.is_well(answer) else self._silent + 1
            if answer is None:  # keep the connection: a late answer counts too
                return self._silent >= MAX_MISSED_PROBES
        self.close()
        self._send_probe()
        return self._silent >= MAX_MISSED_PROBES

    def close(self) -> None:
        """Close the connection and wait for no answer. Safe to call twice."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send_probe(self) -> None:
        address = self._probe.address
        connection = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
        # The kernel accepts connections even for a stopped process, so a short timeout suffices.
        connection.settimeout(_CONNECT_S)
        try:
            connection.connect(address)
            connection.sendall(self._probe.words)
            connection.setblocking(False)
        except OSError:
            connection.close()
            return
        self._connection = connection

    def _answer(self) -> bytes | None:
        """Return the bytes received; `None` if pending, b"" if the connection ended."""
        if self._connection is None:
            return b""
        try:
            return self._connection.recv(_ENOUGH)
        except BlockingIOError:
            return None
        except OSError:
            return b""
