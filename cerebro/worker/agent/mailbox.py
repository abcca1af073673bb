"""Tasks that wait on this worker, which of them may begin, and what tells a selector that there is one."""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable

from cerebro.contract.tasks import InboxItem
from cerebro.worker.agent.lease import Named, name_of


class DeviceQueues:
    """What this worker was given and has not ended, oldest first: an attempt begins when it is the first on each of its
    devices.

    All attempts are in the one order of the inbox, and an attempt takes its devices all at once. So none waits for one
    behind it, and of several only the younger waits.

    Args:
        on_leave: called with its devices after an attempt has left: others may begin now.
    """

    def __init__(self, on_leave: Callable[[tuple[int, ...]], None]) -> None:
        self._lock = threading.Lock()
        self._open: list[InboxItem] = []
        self._on_leave = on_leave

    def enter(self, item: InboxItem) -> None:
        """An attempt has come."""
        with self._lock:
            self._open.append(item)

    def leave(self, named: Named) -> None:
        """An attempt has ended for the store as well, or was taken back. Calling twice is safe."""
        with self._lock:
            left = [item for item in self._open if name_of(item) == name_of(named)]
            self._open = [item for item in self._open if item not in left]
        for item in left:
            self._on_leave(item.devices)

    def is_first(self, item: InboxItem, behind: InboxItem | None = None) -> bool:
        """Whether nothing older has one of its devices, apart from `behind`, which ends in the step before."""
        with self._lock:
            for other in self._open:
                if name_of(other) == name_of(item):
                    return True
                if (behind is None or name_of(other) != name_of(behind)) and overlap(
                    other.devices, item.devices
                ):
                    return False
        return True


def overlap(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether two sets of devices have one in common. Tasks without device share the lane that is theirs."""
    return one == other or not set(one).isdisjoint(other)


class Notification:
    """Wakes one thread. `fileno` is readable after `wake`, until it is taken off."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)

    def close(self) -> None:
        """Give its descriptors back: whoever makes many needs that."""
        os.close(self._read_end)
        os.close(self._write_end)

    def fileno(self) -> int:
        """For a selector."""
        return self._read_end

    def wake(self) -> None:
        """Make a waiting reader look up. Safe in a signal handler: takes no lock."""
        try:
            os.write(self._write_end, b"!")
        except BlockingIOError:
            # Full: the reader has been notified.
            pass

    def drain(self) -> None:
        """Take the notifications off the pipe."""
        try:
            while os.read(self._read_end, 4096):
                pass
        except BlockingIOError:
            pass

    def pause(self, timeout_s: float | None) -> None:
        """Wait for a notification and take it off; no longer than `timeout_s`."""
        # On the pipe, not on a condition: what a signal handler writes just before the wait is still read.
        select.select([self._read_end], [], [], timeout_s)
        self.drain()


class Mailbox(Notification):
    """A queue of inbox items between threads, all for one set of devices. `fileno` becomes readable when something was
    put or `wake` was called.

    Args:
        queues: say which item may begin; told of those that are taken back while they wait.
    """

    def __init__(self, queues: DeviceQueues) -> None:
        super().__init__()
        self._items: deque[InboxItem] = deque()
        self._lock = threading.Lock()
        self._queues = queues

    def put(self, item: InboxItem) -> None:
        """Add an item."""
        with self._lock:
            self._queues.enter(item)
            self._items.append(item)
        self.wake()

    def remove(self, cancel: InboxItem) -> bool:
        """Drop the attempt that `cancel` names; false when it is not waiting here."""
        with self._lock:
            item = next((each for each in self._items if name_of(each) == name_of(cancel)), None)
            if item is not None:
                self._items.remove(item)
        if item is not None:
            self._queues.leave(item)
        return item is not None

    def next(self, behind: InboxItem | None = None) -> InboxItem | None:
        """Take the oldest item if it may begin; else `None`.

        Args:
            behind: an attempt of the same devices, whose end is told to the store in the same request.
        """
        with self._lock:
            # What others lead is told nobody: what ends before it is told first.
            is_apart = behind is not None and self._items and self._items[0].member > 0
            if self._items and not is_apart and self._queues.is_first(self._items[0], behind):
                return self._items.popleft()
        return None

    def take_all(self) -> list[InboxItem]:
        """Take what waits, whether it may begin or not: to be given back."""
        with self._lock:
            items = list(self._items)
            self._items.clear()
        return items

    def peek(self) -> InboxItem | None:
        """The oldest item, left where it is."""
        with self._lock:
            return self._items[0] if self._items else None

    def wait(self, timeout_s: float | None = None) -> InboxItem | None:
        """Take the oldest item as `next` does, waiting for one; `None` after `timeout_s` or a `wake`."""
        item = self.next()
        if item is None:
            self.pause(timeout_s)
            item = self.next()
        else:
            self.drain()
        return item
