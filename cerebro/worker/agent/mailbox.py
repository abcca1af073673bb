"""Tasks that wait on this worker, and what tells a selector that there is one."""

from __future__ import annotations

import os
import select
import threading
from collections import deque

from cerebro.contract.tasks import InboxItem
from cerebro.worker.agent.lease import name_of


class Mailbox:
    """A queue of inbox items between threads. `fileno` becomes readable when something was put or `wake` was called."""

    def __init__(self) -> None:
        self._items: deque[InboxItem] = deque()
        self._lock = threading.Lock()
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)

    def fileno(self) -> int:
        """For a selector."""
        return self._read_end

    def put(self, item: InboxItem) -> None:
        """Add an item."""
        with self._lock:
            self._items.append(item)
        self._ring()

    def remove(self, cancel: InboxItem) -> bool:
        """Drop the attempt that `cancel` names; false when it is not waiting here."""
        with self._lock:
            item = next((each for each in self._items if name_of(each) == name_of(cancel)), None)
            if item is not None:
                self._items.remove(item)
        return item is not None

    def next(self) -> InboxItem | None:
        """Take the oldest item, or `None`."""
        with self._lock:
            return self._items.popleft() if self._items else None

    def peek(self) -> InboxItem | None:
        """The oldest item, left where it is."""
        with self._lock:
            return self._items[0] if self._items else None

    def wait(self, timeout_s: float) -> InboxItem | None:
        """Take the oldest item, waiting for one; `None` after `timeout_s` or a `wake`."""
        item = self.next()
        if item is None:
            # On the pipe, not on a condition: what a signal handler writes just before the wait is still read.
            select.select([self._read_end], [], [], timeout_s)
            item = self.next()
        self.drain()
        return item

    def wake(self) -> None:
        """Make a waiting reader look up. Safe in a signal handler: takes no lock."""
        self._ring()

    def drain(self) -> None:
        """Take the notifications off the pipe."""
        os.set_blocking(self._read_end, False)
        try:
            while os.read(self._read_end, 4096):
                pass
        except BlockingIOError:
            pass

    def _ring(self) -> None:
        try:
            os.write(self._write_end, b"!")
        except BlockingIOError:
            # Full: it is ringing already.
            pass
