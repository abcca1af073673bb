"""The attempt that runs now: whether it is still ours, and what it said of its progress."""

from __future__ import annotations

import threading

from cerebro.contract import api
from cerebro.contract.events import LivePoint
from cerebro.contract.tasks import InboxItem

Named = InboxItem | api.Commit | api.Fail
"""What names an attempt."""


def name_of(named: Named) -> tuple[str, str, int]:
    """By which two messages are told to be of one attempt."""
    return named.experiment, named.task, named.attempt


class Lease:
    """Shared by the thread that runs the task and the one that reports."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._item: InboxItem | None = None
        self._points: list[LivePoint] = []
        self._newest: InboxItem | None = None
        self._lost = False
        self.hinted: tuple[str, int] | None = None
        """The next task that the child was told of; used by the slot's thread only."""

    @property
    def item(self) -> InboxItem | None:
        """The running attempt."""
        with self._lock:
            return self._item

    @property
    def described(self) -> str | None:
        """The running attempt for people, as `experiment/task`."""
        item = self.item
        return f"{item.experiment}/{item.task}" if item else None

    @property
    def is_lost(self) -> bool:
        """Whether the store or the controller took it away."""
        with self._lock:
            return self._lost

    def begin(self, item: InboxItem) -> None:
        """The lease of `item` was taken."""
        with self._lock:
            self._item = self._newest = item
            self._points, self._lost = [], False

    def end(self, named: Named) -> None:
        """The attempt that `named` tells of has ended: no more renewals; its last points are still to be sent. Without
        effect if another attempt runs."""
        with self._lock:
            if self._is_running(named):
                self._item = None

    def lose(self, named: Named) -> None:
        """The attempt was taken back; without effect if another attempt runs by now."""
        with self._lock:
            if self._is_running(named):
                self._lost = True

    def _is_running(self, named: Named) -> bool:
        return self._item is not None and name_of(self._item) == name_of(named)

    def progress(self, point: LivePoint) -> None:
        """Keep a point until the next report. Without values only the newest counts."""
        with self._lock:
            if self._points and not self._points[-1].values:
                self._points.pop()
            self._points.append(point)

    def take_points(self) -> tuple[InboxItem | None, tuple[LivePoint, ...]]:
        """The attempt and its unsent points; they are sent by the caller."""
        with self._lock:
            points, self._points = tuple(self._points), []
            return self._newest, points
