"""Who requested the present number of workers, and when. No I/O; keeps state.

A person's choice holds against the autoscaler for an hour, so `controller.scaling.worker_set_size`, its only user,
must know the author of every change. Requests pass through the controller. Any other change of the cluster manager's
number was made by a person, by `kubectl scale`. The store keeps the record for the next leader (`WorkerSetStatus`).
"""

from __future__ import annotations

import math
from typing import Any

from cerebro.contract.records import AUTOSCALER, SizeRequest, WorkerSetStatus


class SizeRecord:
    """Authors and times of requests for a number of workers. Times are seconds since the epoch.

    Attributes:
        size: requested pods at the last check; `None` before.
        chosen_at: last choice by a person; minus infinity without one.
        changed_at: last change by the autoscaler; minus infinity without one.
        scaled_to_zero_at: last choice of zero by a person that still holds; minus infinity without one.
        installed: worker set and number of the chart's values applied last, as in `WorkerSetStatus.installed`.
    """

    def __init__(self) -> None:
        self.size: int | None = None
        self.chosen_at, self.changed_at, self.scaled_to_zero_at = -math.inf, -math.inf, -math.inf
        self.installed = ""
        self._autoscaler_size: int | None = None
        """The autoscaler's last request, until another author changes the number."""
        self._emptying_since: float | None = None
        """Time of a person's request for zero workers, until there are none."""
        self._capacity_limit: tuple[int, str] | None = None
        """The number after a reduction for lack of nodes, and its message."""

    def forget(self) -> None:
        """Forget the number: another controller may have changed it."""
        self.size, self._autoscaler_size = None, None

    def recall(self, stored: WorkerSetStatus) -> None:
        """Continue the record of the previous leader."""
        self.size, self.installed = stored.size, stored.installed
        self.chosen_at = -math.inf if stored.chosen_at is None else stored.chosen_at
        self.scaled_to_zero_at = -math.inf
        if stored.scaled_to_zero_at is not None and stored.size == 0:
            self.scaled_to_zero_at = stored.scaled_to_zero_at
        elif stored.scaled_to_zero_at is not None:
            self._emptying_since = stored.scaled_to_zero_at

    def to_store(self, size: int) -> dict[str, Any]:
        """Return the fields of `WorkerSetStatus` that say who chose the number of workers."""
        return {
            "size": size,
            "chosen_at": None if self.chosen_at == -math.inf else self.chosen_at,
            "scaled_to_zero_at": self._emptying_since
            if self.scaled_to_zero_at == -math.inf
            else self.scaled_to_zero_at,
            "installed": self.installed,
        }

    def observe(self, size: int, now: float) -> None:
        """Record the cluster manager's number, which is a person's choice unless it was requested here.

        After a change of leader, the new controller compares it with the previous controller's record. Without a
        record, it does not take the number for a person's choice.
        """
        if size == self.size:
            return
        self.scaled_to_zero_at = -math.inf
        if size != self._autoscaler_size:
            if self.size is not None:
                self.chosen_at = now
            is_known = self.size is not None and self.size > 0
            if not size and (is_known or self._emptying_since is not None):
                self.scaled_to_zero_at = now if self._emptying_since is None else self._emptying_since
            self._autoscaler_size = None
        self._emptying_since = None
        if self._capacity_limit is not None and self._capacity_limit[0] == self.size:
            self._capacity_limit = None
        self.size = size

    def observe_request(self, request: SizeRequest, now: float) -> None:
        """Record since when a person has requested zero workers."""
        if request.workers or request.by == AUTOSCALER:
            self._emptying_since = None
        elif self._emptying_since is None:
            self._emptying_since = now

    def refused(self) -> None:
        """Record that the cluster manager has refused a request."""
        self._emptying_since = None

    def accepted(self, request: SizeRequest, now: float) -> None:
        """Record that the cluster manager has accepted a request."""
        self._autoscaler_size = request.workers if request.by == AUTOSCALER else None
        if request.by != AUTOSCALER:
            self.chosen_at = now

    def requested(self, workers: int, now: float) -> None:
        """Record a request by the autoscaler."""
        self._autoscaler_size, self.changed_at = workers, now

    def scaled_at_installation(self, workers: int) -> None:
        """Record the installation's number, which is not a person's choice."""
        self._autoscaler_size = workers

    def limited(self, workers: int, reason: str, now: float) -> None:
        """Record a reduction for lack of nodes. It holds like a person's choice, or it would be undone at once."""
        self.chosen_at = now
        self._capacity_limit = workers, f"{workers} of {self.size} workers are wanted now: {reason}"

    def capacity_text(self, size: int) -> str:
        """Return why there are fewer workers than requested, until another number is chosen; else ""."""
        is_limited = self._capacity_limit is not None and self._capacity_limit[0] == size
        return self._capacity_limit[1] if self._capacity_limit is not None and is_limited else ""
