"""The lease of the running attempt, and its unreported progress.

Each slot has one `Lease`. The slot's thread and `AttemptRunner` record points and savepoints, and `Reports` sends them.
The agent's `loop` renews the lease, and marks it as lost if the store refuses. The store owns the lease: this is the
worker's copy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from cerebro.contract.events import LivePoint
from cerebro.contract.rest import api
from cerebro.contract.tasks.checkpoints import Savepoint
from cerebro.contract.tasks.inbox import InboxItem

Named = InboxItem | api.Commit | api.Fail | api.Save
"""Records that identify an attempt."""

Name = tuple[str, str, int]
"""Experiment, task and number of an attempt."""


def name_of(named: Named) -> Name:
    """Return the key that identifies an attempt."""
    return named.experiment, named.task, named.attempt


class Lease:
    """Lease shared by the task's thread and the reporting thread.

    Args:
        report_soon: called when a savepoint needs reporting.
    """

    def __init__(self, report_soon: Callable[[], None] = lambda: None) -> None:
        self._report_soon = report_soon
        self._lock = threading.Lock()
        self._item: InboxItem | None = None
        self._points: list[LivePoint] = []
        self._newest: InboxItem | None = None
        self._lost = False
        self._release_reasons: dict[Name, str] = {}
        self._save: api.Save | None = None
        self.hinted: Name | None = None
        """Next task announced to the child; only for the slot's thread."""

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
        """True if the store or the controller revoked it."""
        with self._lock:
            return self._lost

    def begin(self, item: InboxItem) -> None:
        """Start the lease of `item`, which the store has granted."""
        with self._lock:
            self._item = self._newest = item
            self._points, self._lost, self._save = [], False, None
            # A preemption may arrive before this thread learns that the attempt was granted.
            self._release_reasons = {
                name: why for name, why in self._release_reasons.items() if name == name_of(item)
            }

    def end(self, named: Named) -> None:
        """End an attempt: stop renewals, but still send its last points. Ignore other attempts."""
        with self._lock:
            if self._is_running(named):
                self._item = None

    def lose(self, named: Named) -> None:
        """Mark an attempt as revoked. Ignore other attempts."""
        with self._lock:
            if self._is_running(named):
                self._lost = True

    def request_release(self, item: InboxItem) -> None:
        """Request release of an attempt at its next batch. Ignore other attempts."""
        with self._lock:
            self._release_reasons[name_of(item)] = item.preempt

    @property
    def release_reason(self) -> str:
        """Reason why the running attempt is preempted, or ""."""
        with self._lock:
            return self._release_reasons.get(name_of(self._item), "") if self._item is not None else ""

    def save(self, savepoint: Savepoint) -> None:
        """Record a savepoint of the running attempt, to be reported."""
        with self._lock:
            if self._item is not None:
                experiment, task, attempt = name_of(self._item)
                self._save = api.Save(experiment=experiment, task=task, attempt=attempt, savepoint=savepoint)
        self._report_soon()

    @property
    def unsaved(self) -> api.Save | None:
        """Newest savepoint that the store does not have."""
        with self._lock:
            return self._save

    def confirm_save(self, save: api.Save) -> None:
        """Mark a savepoint as reported."""
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
        """Take the unsent points, which the caller sends, and return them with their attempt."""
        with self._lock:
            points, self._points = tuple(self._points), []
            return self._newest, points
