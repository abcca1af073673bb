"""Whether a service that was ready still answers, as Kubernetes asks its pods: one that hangs is to be started anew.

A process can hang and not end: stopped by a signal, in a deadlock. It is asked every few seconds over its own
interface. A probe waits in an open connection for its answer while the supervisor does other things: `Watch.look`
does not wait for it, so many services that hang do not hold up one another, nor a stop.

Only looks in a row that came in time count. Where the supervisor itself could not run (a laptop that was suspended, a
machine out of memory), the services could not either, and get their whole time again. Plain sockets: see `readiness`.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cerebro.local.ports import HOST

EVERY_S = 3.0
LOOKS = 6
"""A service that has not said that it is well at so many looks in a row is hung. It then had 18 seconds for one answer,
which takes milliseconds, and on a machine under heavy load a second or two."""

_LATE_S = 2 * EVERY_S
_CONNECT_S = 0.2
_ENOUGH = 1 << 12


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What to ask a service.

    Attributes:
        address: a path, or host and port.
        words: what is sent.
        is_well: whether what has come as the answer says so; it may be cut short.
    """

    address: str | tuple[str, int]
    words: bytes
    is_well: Callable[[bytes], bool]


def http(port: int) -> Probe:
    """A GET of /live is answered with status 200 (see `cerebro.runtime.health`)."""
    words = f"GET /live HTTP/1.0\r\nHost: {HOST}:{port}\r\n\r\n".encode()
    return Probe(
        address=(HOST, port), words=words, is_well=lambda answer: answer.split(b" ")[1:2] == [b"200"]
    )


def redis(path: Path) -> Probe:
    """The database answers anything: what it is busy with, it need not be killed for."""
    return Probe(address=str(path), words=b"PING\r\n", is_well=bool)


class Watch:
    """One process of a service, looked at every `EVERY_S`. Owns a connection; `close` it."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._connection: socket.socket | None = None
        self._looked: float | None = None
        self._silent = 0
        """Looks in a row without a good answer."""

    def look(self, now: float) -> bool:
        """Hear what was answered, ask again; whether the process is hung. `now`: monotonic seconds."""
        before, self._looked = self._looked, now
        if before is None or now - before > _LATE_S:
            self._silent = 0
        else:
            answer = self._answer()
            self._silent = 0 if answer and self._probe.is_well(answer) else self._silent + 1
            if answer is None:  # the probe stands: a late answer is an answer, too
                return self._silent >= LOOKS
        self.close()
        self._ask()
        return self._silent >= LOOKS

    def close(self) -> None:
        """Wait for no answer. Twice is safe."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self) -> None:
        address = self._probe.address
        connection = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
        # The kernel takes connections for a process that is stopped, at once: no more time is needed.
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
        """What has come; None if nothing has yet; empty if nothing will."""
        if self._connection is None:
            return b""
        try:
            return self._connection.recv(_ENOUGH)
        except BlockingIOError:
            return None
        except OSError:
            return b""
