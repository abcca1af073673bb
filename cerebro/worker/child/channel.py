"""Messages between an agent and its child: JSON objects, one per line, over a socket pair.

JSON rather than pickle, because the child runs user code and is not trusted. User code may write to the
socket, for example after closing a file descriptor twice. Such lines are dropped, counted and quoted; the
messages around them arrive.
"""

from __future__ import annotations

import json
import select
import socket
import threading
from collections import deque
from typing import Any

from cerebro.contract.texts import cleaned

# Saved before user code is imported, which may replace them.
_dumps, _loads = json.dumps, json.loads

MAX_LINE = 64 << 20
"""Maximum bytes of a message. It contains user code, which has at most 32 MiB."""
_READ_BYTES = 1 << 16
_TURN_BYTES = 1 << 20
"""Maximum bytes read by one call of `pending`, so that a flood of messages cannot block the caller."""
_QUOTED = 100


class Channel:
    """One end of a socket pair. Any thread may call `send`; one thread calls the reading methods.

    Args:
        unread: bytes that another process read from this end, as returned by `left`.

    Attributes:
        is_closed: True after the other end was found closed.
        strays: number of lines that were not messages.
    """

    def __init__(self, end: socket.socket, unread: bytes = b"") -> None:
        self._socket = end
        self._poll = select.poll()  # takes descriptors of any number
        self._poll.register(end, select.POLLIN)
        self._messages: deque[dict[str, Any]] = deque()
        self._parts: list[bytes] = []
        """Parts of an incomplete line."""
        self._num_bytes = 0
        """Bytes of the incomplete line, including dropped ones."""
        self.is_closed = False
        self.strays, self._stray = 0, b""
        self._lock = threading.Lock()
        self._take(unread)

    def fileno(self) -> int:
        """Return the descriptor for select. It does not show `pending` messages that are already read."""
        return self._socket.fileno()

    def send(self, message: dict[str, Any]) -> None:
        """Send one message.

        Raises:
            OSError: the other end is closed.
        """
        # A leading newline ends any partial line that user code has written.
        line = b"\n" + _dumps(message).encode() + b"\n"
        with self._lock:
            self._socket.sendall(line)

    def receive(self) -> dict[str, Any] | None:
        """Wait for the next message and return it; `None` if the other end is closed."""
        while not self._messages:
            if not self._read():
                return None
        return self._messages.popleft()

    def pending(self) -> dict[str, Any] | None:
        """Return the next message that has arrived, or `None`."""
        for _ in range(_TURN_BYTES // _READ_BYTES):
            if self._messages:
                break
            if not self._poll.poll(0) or not self._read():
                break
        return self._messages.popleft() if self._messages else None

    def left(self, *messages: dict[str, Any]) -> bytes:
        """Return `messages` and everything read after them, for the next reader of this socket.

        The result is never empty. This end discards them.
        """
        lines = [_dumps(each).encode() for each in (*messages, *self._messages)]
        unread = b"\n".join([b"", *lines, b"".join(self._parts)])
        self._messages.clear()
        self._parts, self._num_bytes = [], 0
        return unread

    def put_back(self, unread: bytes) -> None:
        """Add bytes that another process read from this end, as returned by `left`."""
        self._take(unread)

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    @property
    def stray(self) -> str:
        """The latest line that was not a message, shortened."""
        return cleaned(self._stray.decode(errors="replace"), _QUOTED)

    def drop(self, message: dict[str, Any]) -> None:
        """Count a message that no receiver understood."""
        self._drop(_dumps(message).encode())

    def _drop(self, line: bytes) -> None:
        self.strays, self._stray = self.strays + 1, line[:_QUOTED]

    def _read(self) -> bool:
        try:
            data = self._socket.recv(_READ_BYTES)
        except OSError:
            data = b""
        self._take(data)
        self.is_closed = not data
        return bool(data)

    def _take(self, data: bytes) -> None:
        first, *others = data.split(b"\n")
        self._add(first)
        for other in others:
            self._end_line()
            self._add(other)

    def _add(self, part: bytes) -> None:
        self._num_bytes += len(part)
        if part and self._num_bytes <= MAX_LINE:
            self._parts.append(part)
        elif part:
            # Too long for a message. Keep its beginning to quote it.
            del self._parts[1:]

    def _end_line(self) -> None:
        line, num_bytes = b"".join(self._parts), self._num_bytes
        self._parts, self._num_bytes = [], 0
        if not num_bytes:
            return
        message = _parsed(line) if num_bytes <= MAX_LINE else None
        if message is not None:
            self._messages.append(message)
        else:
            self._drop(line)


def _parsed(line: bytes) -> dict[str, Any] | None:
    if not line.lstrip().startswith(b"{"):
        return None  # cheaper than parsing a flood of lines
    try:
        message = _loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None
