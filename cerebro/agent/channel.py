"""Messages between an agent and its child: JSON objects, one per line, over a socket pair.

JSON and not pickle: the child runs user code, so nothing that comes from it is trusted further than that.
"""

from __future__ import annotations

import json
import select
import socket
import threading
from typing import Any

_READ_BYTES = 1 << 16


class Channel:
    """One end of the pair. `send` may be called by any thread, the reading methods by one."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._buffer = b""
        self.is_closed = False
        """Whether the other end was found to be gone."""
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """For select; note that `pending` messages are not seen by it."""
        return self._socket.fileno()

    def send(self, message: dict[str, Any]) -> None:
        """Send one message; `OSError` when the other end is gone."""
        line = json.dumps(message).encode() + b"\n"
        with self._lock:
            self._socket.sendall(line)

    def receive(self) -> dict[str, Any] | None:
        """The next message, waiting for it; `None` when the other end is gone."""
        while b"\n" not in self._buffer:
            if not self._read():
                return None
        return self._pop()

    def pending(self) -> dict[str, Any] | None:
        """The next message if one is there already, else `None`."""
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._socket], [], [], 0)
            if not ready or not self._read():
                return None
        return self._pop()

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def _read(self) -> bool:
        try:
            data = self._socket.recv(_READ_BYTES)
        except OSError:
            data = b""
        self._buffer += data
        self.is_closed = not data
        return bool(data)

    def _pop(self) -> dict[str, Any]:
        line, self._buffer = self._buffer.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        return message
