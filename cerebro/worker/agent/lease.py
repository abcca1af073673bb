"""The lease of the running attempt or fused group, and its unreported progress.

Each slot has one `Lease`. The slot's thread and `AttemptRunner` record points and savepoints, and `Reports` sends them.
The agent's `loop` renews the lease, and marks it as lost if the store refuses. The store owns the lease: this is the
worker's copy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any

from cerebro.contract.events import LivePoint
from cerebro.contract.rest import api
from cerebro.contract.tasks.bodies import FusedTask
from cerebro.contract.tasks.checkpoints import Savepoint
from cerebro.contract.tasks.failures import Failure
from cerebro.contract.tasks.inbox import InboxItem

Named = InboxItem | api.Commit | api.Fail | api.Save
"""Records that identify an attempt."""

Name = tuple[str, str, int]
"""Experiment, task and number of an attempt."""


def name_of(named: Named) -> Name:
    """Return the key that identifies an attempt. An inbox item of a fused group has its first task's, in any case."""
    return named.experiment, named.task, named.attempt


def attempt_fields(item: InboxItem) -> dict[str, Any]:
    """Return the fields that identify an attempt."""
    return {"experiment": item.experiment, "task": item.task, "attempt": item.attempt}


def attempts_of(item: InboxItem) -> tuple[InboxItem, ...]:
    """Return the attempts of an inbox item: the members of a fused group, or the item itself."""
    if not isinstance(item.body, FusedTask):
        return (item,)
    return tuple(
        item.model_copy(update={"task": each.task, "attempt": each.attempt, "body": each.body})
        for each in item.body.members
    )


def without(item: InboxItem, names: Collection[Name]) -> InboxItem | None:
    """Return the inbox item without some attempts; `None` if none is left."""
    if not isinstance(item.body, FusedTask):
        return None if name_of(item) in names else item
    members = tuple(
        member
        for member, attempt in zip(item.body.members, attempts_of(item), strict=True)
        if name_of(attempt) not in names
    )
    if not members:
        return None
    return item.model_copy(update={"body": item.body.model_copy(update={"members": members})})


class Lease:
    """Lease of the running attempt, or of those of a fused group. The task's and the reporting thread share it.

    Args:
        report_soon: called when a savepoint or an early end needs reporting.
    """

    def __init__(self, report_soon: Callable[[], None] = lambda: None) -> None:
        self._report_soon = report_soon
        self._lock = threading.Lock()
        self._open: dict[Name, InboxItem] = {}
        self._points: list[LivePoint] = []
        self._newest: InboxItem | None = None
        self._lost: set[Name] = set()
        self._release_reasons: dict[Name, str] = {}
        self._unreported: list[api.Save | api.Fail] = []
        self.hinted: Name | None = None
        """Next task announced to the child; only for the slot's thread."""

    @property
    def attempts(self) -> tuple[InboxItem, ...]:
        """The running attempts."""
        with self._lock:
            return tuple(self._open.values())

    @property
    def described(self) -> tuple[str, ...]:
        """The running attempts for people, as `experiment/task`."""
        return tuple(f"{item.experiment}/{item.task}" for item in self.attempts)

    @property
    def is_lost(self) -> bool:
        """True if the store or the controller revoked all its attempts."""
        with self._lock:
            newest = attempts_of(self._newest) if self._newest is not None else ()
            return bool(newest) and self._lost.issuperset(map(name_of, newest))

    @property
    def lost(self) -> frozenset[Name]:
        """Attempts that the store or the controller revoked."""
        with self._lock:
            return frozenset(self._lost)

    def begin(self, item: InboxItem) -> None:
        """Start the lease of `item`, whose attempts the store has granted."""
        with self._lock:
            self._newest = item
            self._open = {name_of(attempt): attempt for attempt in attempts_of(item)}
            self._points, self._lost, self._unreported = [], set(), []
            # A preemption may arrive before this thread learns that the attempt was granted.
            self._release_reasons = {
                name: why for name, why in self._release_reasons.items() if name in self._open
            }

    def end(self, named: Named) -> None:
        """End an attempt: stop renewals, but still send its last points. Ignore other attempts."""
        with self._lock:
            self._open.pop(name_of(named), None)

    def lose(self, named: Named) -> None:
        """Mark an attempt as revoked. Ignore other attempts."""
        with self._lock:
            if name_of(named) in self._open:
                self._lost.add(name_of(named))

    def request_release(self, item: InboxItem) -> None:
        """Request release of an attempt at its next batch. Ignore other attempts."""
        with self._lock:
            self._release_reasons[name_of(item)] = item.preempt

    @property
    def release_reason(self) -> str:
        """Reason why the running attempt is preempted, or "". Empty for a fused group; see `release_reasons`."""
        with self._lock:
            if not self._open or self._newest is None or isinstance(self._newest.body, FusedTask):
                return ""
            return self._release_reasons.get(name_of(self._newest), "")

    @property
    def release_reasons(self) -> dict[Name, str]:
        """Reasons why running attempts are preempted."""
        with self._lock:
            return {name: why for name, why in self._release_reasons.items() if name in self._open}

    def save(self, savepoint: Savepoint, item: InboxItem) -> None:
        """Record a savepoint of a running attempt, to be reported."""
        with self._lock:
            if name_of(item) in self._open:
                earlier = [step for step in self._unreported if name_of(step) == name_of(item)]
                self._unreported = [step for step in self._unreported if step not in earlier]
                self._unreported.append(api.Save(**attempt_fields(item), savepoint=savepoint))
        self._report_soon()

    def end_early(self, failure: Failure, item: InboxItem) -> None:
        """Record the failure of one attempt of a fused group while the others run, to be reported."""
        with self._lock:
            if self._open.pop(name_of(item), None) is not None:
                self._unreported.append(api.Fail(**attempt_fields(item), failure=failure))
        self._report_soon()

    @property
    def unreported(self) -> tuple[api.Save | api.Fail, ...]:
        """Savepoints and early ends that the store does not have, oldest first; one savepoint of each attempt."""
        with self._lock:
            return tuple(self._unreported)

    def confirm(self, step: api.Save | api.Fail) -> None:
        """Mark a savepoint or an early end as reported."""
        with self._lock:
            self._unreported = [each for each in self._unreported if each is not step]

    def progress(self, point: LivePoint) -> None:
        """Keep a point until the next report. Of an attempt's points without values only the newest counts."""
        with self._lock:
            for number in reversed(range(len(self._points))):
                if self._points[number].task == point.task:
                    if not self._points[number].values:
                        del self._points[number]
                    break
            self._points.append(point)

    def take_points(self) -> tuple[InboxItem | None, tuple[LivePoint, ...]]:
        """Take the unsent points, which the caller sends, and return them with their attempt."""
        with self._lock:
            points, self._points = tuple(self._points), []
            return self._newest, points
