"""The attempt that runs now: whether it is still ours, and what it said of its progress."""

from __future__ import annotations

import threading
from collections.abc import Callable

from cerebro.contract import api
from cerebro.contract.events import LivePoint
from cerebro.contract.tasks import InboxItem, Savepoint

Named = InboxItem | api.Commit | api.Fail | api.Save
"""What names an attempt."""

Name = tuple[str, str, int]


def name_of(named: Named) -> Name:
    """By which two messages are told to be of one attempt."""
    return named.experiment, named.task, named.attempt


class Lease:
    """Shared by the thread that runs the task and the one that reports.

    Args:
        report_soon: called when there is a savepoint to tell.
    """

    def __init__(self, report_soon: Callable[[], None] = lambda: None) -> None:
        self._report_soon = report_soon
        self._lock = threading.Lock()
        self._item: InboxItem | None = None
        self._points: list[LivePoint] = []
        self._newest: InboxItem | None = None
        self._lost = False
        self._asked: dict[Name, str] = {}
        self._save: api.Save | None = None
        self.hinted: Name | None = None
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
            self._points, self._lost, self._save = [], False, None
            # It may have been asked for before this thread heard that it was granted.
            self._asked = {name: why for name, why in self._asked.items() if name == name_of(item)}

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

    def ask(self, item: InboxItem) -> None:
        """The attempt that `item` names is to be given back at its next batch; without effect if another one runs."""
        with self._lock:
            self._asked[name_of(item)] = item.ask

    @property
    def asked(self) -> str:
        """Why the running attempt is to be given back; empty if it is not."""
        with self._lock:
            return self._asked.get(name_of(self._item), "") if self._item is not None else ""

    def save(self, savepoint: Savepoint) -> None:
        """The running attempt has a savepoint: to be told to the store."""
        with self._lock:
            if self._item is not None:
                experiment, task, attempt = name_of(self._item)
                self._save = api.Save(experiment=experiment, task=task, attempt=attempt, savepoint=savepoint)
        self._report_soon()

    @property
    def unsaved(self) -> api.Save | None:
        """The newest savepoint, while the store does not know of it."""
        with self._lock:
            return self._save

    def told(self, save: api.Save) -> None:
        """The store has heard of this one."""
        with self._lock:
            if self._save is save:
                self._save = None

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
