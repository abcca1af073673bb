"""Queues of waiting tasks, their start order, and wake-ups for selectors.

The agent's inbox thread puts items into the `Mailbox` of a slot; the slot's thread takes them when `DeviceQueues`
allows it. All slots share one `DeviceQueues`. Order is the inbox's: nothing here schedules.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable

from cerebro.contract.tasks.inbox import InboxItem
from cerebro.worker.agent.lease import Named, attempts_of, name_of, without


class DeviceQueues:
    """Unfinished attempts of this worker, oldest first. One starts when it is first on all its devices.

    All attempts follow the inbox's order, and each takes its devices at once. So only younger attempts wait
    for older ones.

    Args:
        on_leave: called with an attempt's devices after it has left, so others may start.
    """

    def __init__(self, on_leave: Callable[[tuple[int, ...]], None]) -> None:
        self._lock = threading.Lock()
        self._open: list[InboxItem] = []
        self._on_leave = on_leave

    def enter(self, item: InboxItem) -> None:
        """Add a new attempt."""
        with self._lock:
            self._open.append(item)

    def leave(self, named: Named) -> None:
        """Remove an attempt after the store has recorded its end or it was revoked. Calling twice is safe."""
        with self._lock:
            matching = [item for item in self._open if name_of(item) == name_of(named)]
            self._open = [item for item in self._open if item not in matching]
        for item in matching:
            self._on_leave(item.devices)

    def is_first(self, item: InboxItem, behind: InboxItem | None = None) -> bool:
        """True if no older attempt shares its devices, except `behind`, which ends in an earlier step."""
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
    """True if two sets of devices overlap. Tasks without devices share a slot."""
    return one == other or not set(one).isdisjoint(other)


class Notification:
    """Wakes one thread. `fileno` is readable after `wake` until `drain`."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)

    def close(self) -> None:
        """Close the descriptors, for callers that create many."""
        os.close(self._read_end)
        os.close(self._write_end)

    def fileno(self) -> int:
        """Return the descriptor for select."""
        return self._read_end

    @property
    def wake_descriptor(self) -> int:
        """A byte written here wakes the reader, for `signal.set_wakeup_fd`."""
        return self._write_end

    def wake(self) -> None:
        """Wake a waiting reader. Safe in a signal handler: takes no lock."""
        try:
            os.write(self._write_end, b"!")
        except BlockingIOError:
            # Full: the reader has been notified.
            pass

    def drain(self) -> None:
        """Remove all notifications, so that `fileno` is no longer readable."""
        try:
            while os.read(self._read_end, 4096):
                pass
        except BlockingIOError:
            pass

    def pause(self, timeout_s: float | None) -> None:
        """Wait for a notification, at most `timeout_s` seconds, and remove it."""
        # A pipe rather than a condition: a signal handler's write just before the wait is still read.
        select.select([self._read_end], [], [], timeout_s)
        self.drain()


class Mailbox(Notification):
    """A thread-safe queue of inbox items for one set of devices.

    `fileno` becomes readable after an item arrives or `wake`.

    Args:
        queues: decide which item may start; notified of items revoked while waiting.
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
        """Drop the attempt that `cancel` names. Return False if it does not wait here."""
        name, emptied = name_of(cancel), None
        with self._lock:
            waiting = (each for each in self._items if name in map(name_of, attempts_of(each)))
            item = next(waiting, None)
            if item is None:
                return False
            remaining = without(item, {name})
            if remaining is not None:  # other models of its fused group
                self._items[self._items.index(item)] = remaining
            else:
                self._items.remove(item)
                emptied = item
        if emptied is not None:
            self._queues.leave(emptied)
        return True

    def next(self, behind: InboxItem | None = None) -> InboxItem | None:
        """Take the oldest item if it may start; otherwise return `None`.

        Args:
            behind: attempt on the same devices that the same request will end.
        """
        with self._lock:
            # Ranks led by another worker send no start step, so report earlier ends first.
            is_apart = behind is not None and self._items and self._items[0].member > 0
            if self._items and not is_apart and self._queues.is_first(self._items[0], behind):
                return self._items.popleft()
        return None

    def take_all(self) -> list[InboxItem]:
        """Take all waiting items, to return them to the controller."""
        with self._lock:
            items = list(self._items)
            self._items.clear()
        return items

    def peek(self) -> InboxItem | None:
        """Return the oldest item without removing it."""
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
