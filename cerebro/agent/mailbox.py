"""Tasks that wait on this worker, and a bell that a selector can hear."""

from __future__ import annotations

import os
import threading
from collections import deque

from cerebro.contract.tasks import InboxItem


class Mailbox:
    """A queue of inbox items between threads. `fileno` becomes readable when something was put or `wake` was called."""

    def __init__(self) -> None:
        self._items: deque[InboxItem] = deque()
        self._condition = threading.Condition()
        self._woken = False
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)

    def fileno(self) -> int:
        """For a selector."""
        return self._read_end

    def put(self, item: InboxItem) -> None:
        """Add an item."""
        with self._condition:
            self._items.append(item)
            self._condition.notify_all()
        self._ring()

    def remove(self, cancel: InboxItem) -> bool:
        """Drop the attempt that `cancel` names; false when it is not waiting here."""
        with self._condition:
            for item in self._items:
                if (item.experiment, item.task, item.attempt) == (
                    cancel.experiment,
                    cancel.task,
                    cancel.attempt,
                ):
                    self._items.remove(item)
                    return True
        return False

    def next(self) -> InboxItem | None:
        """Take the oldest item, or `None`."""
        with self._condition:
            return self._items.popleft() if self._items else None

    def peek(self) -> InboxItem | None:
        """The oldest item, left where it is."""
        with self._condition:
            return self._items[0] if self._items else None

    def wait(self, timeout_s: float) -> InboxItem | None:
        """Take the oldest item, waiting for one; `None` after `timeout_s` or a `wake`."""
        with self._condition:
            self._condition.wait_for(lambda: self._items or self._woken, timeout_s)
            self._woken = False
            item = self._items.popleft() if self._items else None
        self.drain()
        return item

    def wake(self) -> None:
        """Make a waiting reader look up. Safe in a signal handler of the waiting thread."""
        # A signal handler may interrupt the very thread that holds the lock: no lock here, the flag and the
        # pipe suffice.
        self._woken = True
        self._ring()
        if self._condition.acquire(blocking=False):
            self._condition.notify_all()
            self._condition.release()

    def drain(self) -> None:
        """Silence the bell."""
        os.set_blocking(self._read_end, False)
        try:
            while os.read(self._read_end, 4096):
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Release the pipe's descriptors is left to the end of the process: other threads may still ring."""

    def _ring(self) -> None:
        try:
            os.write(self._write_end, b"!")
        except BlockingIOError:
            # Full: it is ringing already.
            pass
