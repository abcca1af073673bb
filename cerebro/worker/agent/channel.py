"""Messages between an agent and its child: JSON objects, one per line, over a socket pair.

JSON and not pickle: the child runs user code, so nothing that comes from it is trusted further than that. User code may
write to the socket itself, say to a file descriptor that it closed twice: what is no message is dropped, counted and
quoted, and the messages around it arrive.
"""

from __future__ import annotations

import json
import select
import socket
import threading
from collections import deque
from typing import Any

from cerebro.contract.texts import cleaned

# As they are before user code is imported: it may put others in their place.
_dumps, _loads = json.dumps, json.loads

MAX_LINE = 64 << 20
"""Bytes of the longest message; user code, of at most 32 MiB, is in one."""
_READ_BYTES = 1 << 16
_TURN_BYTES = 1 << 20
"""What `pending` reads at most: who asks has other things to look after, however much is sent."""
_QUOTED = 100


class Channel:
    """One end of the pair. `send` may be called by any thread, the reading methods by one.

    Args:
        unread: what another process has read from this end, and `left` to this one.

    Attributes:
        is_closed: whether the other end was found to be gone.
        strays: how many lines were no messages.
    """

    def __init__(self, end: socket.socket, unread: bytes = b"") -> None:
        self._socket = end
        self._poll = select.poll()  # takes descriptors of any number
        self._poll.register(end, select.POLLIN)
        self._messages: deque[dict[str, Any]] = deque()
        self._parts: list[bytes] = []
        """Of a line whose end has not arrived."""
        self._num_bytes = 0
        """Of that line, what was dropped included."""
        self.is_closed = False
        self.strays, self._stray = 0, b""
        self._lock = threading.Lock()
        self._take(unread)

    def fileno(self) -> int:
        """For select; note that `pending` messages are not seen by it."""
        return self._socket.fileno()

    def send(self, message: dict[str, Any]) -> None:
        """Send one message; `OSError` when the other end is gone."""
        # A newline in front: what somebody else has begun to write ends there.
        line = b"\n" + _dumps(message).encode() + b"\n"
        with self._lock:
            self._socket.sendall(line)

    def receive(self) -> dict[str, Any] | None:
        """The next message, waiting for it; `None` when the other end is gone."""
        while not self._messages:
            if not self._read():
                return None
        return self._messages.popleft()

    def pending(self) -> dict[str, Any] | None:
        """The next message if one is there already, else `None`."""
        for _ in range(_TURN_BYTES // _READ_BYTES):
            if self._messages:
                break
            if not self._poll.poll(0) or not self._read():
                break
        return self._messages.popleft() if self._messages else None

    def left(self, *messages: dict[str, Any]) -> bytes:
        """`messages`, which were read, and all that was read behind them: for the process that reads from here on.
        Never empty. This end forgets them."""
        lines = [_dumps(each).encode() for each in (*messages, *self._messages)]
        unread = b"\n".join([b"", *lines, b"".join(self._parts)])
        self._messages.clear()
        self._parts, self._num_bytes = [], 0
        return unread

    def put_back(self, unread: bytes) -> None:
        """Take in what another process has read from this end, and `left` to this one."""
        self._take(unread)

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    @property
    def stray(self) -> str:
        """The newest line that was no message, for people; cut."""
        return cleaned(self._stray.decode(errors="replace"), _QUOTED)

    def drop(self, message: dict[str, Any]) -> None:
        """Count a message that was understood by nobody."""
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
            # Too long to be one of ours: its beginning is enough to tell of it.
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
        return None  # of a flood of lines each takes less time so
    try:
        message = _loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None
