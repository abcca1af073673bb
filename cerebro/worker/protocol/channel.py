"""Messages over a stream socket, one JSON object per line.

A channel connects an agent with a child, a child with its task process, and members of a gang. The channel knows the
accepted messages (`cerebro.worker.protocol.messages`), but not their meaning or order. A message has at most 64 MiB.

JSON rather than pickle, because the child runs user code and is not trusted. User code may write to the socket, for
example after closing a file descriptor twice. Lines that are not messages are refused and counted; the messages around
them arrive.
"""

from __future__ import annotations

import select
import socket
import threading
from collections import deque
from typing import Generic

from cerebro.contract.base import Contract
from cerebro.contract.texts import cleaned
from cerebro.worker.protocol.messages import M, MessageError, NoMessageError, Protocol, encode

MAX_LINE = 64 << 20
"""Maximum bytes of a message. A message may contain encoded user code, of at most 32 MiB."""
_READ_BYTES = 1 << 16
_TURN_BYTES = 1 << 20
"""Maximum bytes read by one call of `pending`, so that a flood of messages cannot block the caller."""
_QUOTED = 100
"""Maximum characters of a refused line that are kept."""


class Channel(Generic[M]):
    """One end of a stream socket. Any thread may call `send`; one thread calls the reading methods.

    Args:
        protocol: messages that this end accepts.
        unread: bytes that another process read from this end, as returned by `take_unread`.

    Attributes:
        is_closed: True after the other end was found closed.
        num_refused: number of received lines that are not messages of the protocol.
    """

    def __init__(self, end: socket.socket, protocol: Protocol[M], unread: bytes = b"") -> None:
        self._socket, self._protocol = end, protocol
        self._poll = select.poll()  # takes descriptors of any number
        self._poll.register(end, select.POLLIN)
        self._messages: deque[M] = deque()
        self._parts: list[bytes] = []
        """Parts of an incomplete line."""
        self._num_bytes = 0
        """Bytes of the incomplete line, including dropped ones."""
        self.is_closed = False
        self.num_refused, self._last_refused = 0, ""
        self._lock = threading.Lock()
        self._take(unread)

    def fileno(self) -> int:
        """Return the descriptor for select.

        Call `pending` before select: messages already read don't make it readable.
        """
        return self._socket.fileno()

    def send(self, message: Contract) -> None:
        """Send one message.

        Raises:
            OSError: the other end is closed.
        """
        # A leading newline ends any partial line that user code has written.
        line = b"\n" + encode(message) + b"\n"
        with self._lock:
            self._socket.sendall(line)

    def receive(self) -> M | None:
        """Wait for the next message and return it; `None` if the other end is closed."""
        while not self._messages:
            if not self._read():
                return None
        return self._messages.popleft()

    def pending(self) -> M | None:
        """Return the next message that has arrived, or `None`."""
        for _ in range(_TURN_BYTES // _READ_BYTES):
            if self._messages:
                break
            if not self._poll.poll(0) or not self._read():
                break
        return self._messages.popleft() if self._messages else None

    def take_unread(self, *messages: M) -> bytes:
        """Remove and return all unread messages and bytes, preceded by `messages`.

        For the next process that reads this socket. The result starts with a newline.
        """
        lines = [encode(each) for each in (*messages, *self._messages)]
        unread = b"\n".join([b"", *lines, b"".join(self._parts)])
        self._messages.clear()
        self._parts, self._num_bytes = [], 0
        return unread

    def add_unread(self, unread: bytes) -> None:
        """Add bytes that another process read from this end, as returned by `take_unread`."""
        self._take(unread)

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    @property
    def last_refused(self) -> str:
        """Description of the last refused message, or the refused line itself; shortened."""
        return cleaned(self._last_refused, _QUOTED)

    def refuse(self, message: Contract) -> None:
        """Count a message that came at the wrong time or with forged content."""
        self._refuse(f"unexpected message {type(message).__name__!r}")

    def _refuse(self, description: str) -> None:
        self.num_refused, self._last_refused = self.num_refused + 1, description

    def _read(self) -> bool:
        try:
            data = self._socket.recv(_READ_BYTES)
        except OSError:
            data = b""
        self._take(data)
        self.is_closed = not data
        return bool(data)

    def _take(self, data: bytes) -> None:
        first, *next_lines = data.split(b"\n")
        self._add(first)
        for part in next_lines:
            self._end_line()
            self._add(part)

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
        try:
            if num_bytes > MAX_LINE:
                raise NoMessageError("too long")
            self._messages.append(self._protocol.decode(line))
        except NoMessageError:
            self._refuse(line[:_QUOTED].decode(errors="replace"))
        except MessageError as error:
            self._refuse(str(error))
