"""The registered workers and the state of their machines, as the store reports them.

`controller.scaling.membership` owns it, refreshes it for each snapshot and has it remove workers whose pod is gone
for good. It judges nothing: `controller.scaling.cluster_snapshot` derives absent workers.
"""

from __future__ import annotations

import logging
import time

from cerebro.contract.records import WorkerStatus
from cerebro.contract.stored.health import HealthAnswer
from cerebro.errors import ConflictError, NotFoundError
from cerebro.runtime.kvs.client import KvsClient
from cerebro.state.exclusions import Exclusion
from cerebro.state.worker_quarantine import machine_exclusions
from controller.scaling.orchestrator import Fleet

log = logging.getLogger(__name__)


class Registrations:
    """Reads registrations at most once per tick. Owned by the loop; not thread-safe.

    Args:
        tick_s: maximum seconds between two reads.

    Attributes:
        workers: all registered workers at the last read.
        health: state of their machines then.
    """

    def __init__(self, kvs: KvsClient, tick_s: float) -> None:
        self._kvs, self._tick_s = kvs, tick_s
        self.workers: tuple[WorkerStatus, ...] = ()
        self.health = HealthAnswer()
        self._read_at = -tick_s
        self._reachable_since = time.monotonic()

    def invalidate(self) -> None:
        """Mark the registrations as outdated."""
        self._read_at = -self._tick_s

    def store_was_away(self) -> None:
        """Restart the count of silence: workers could not report."""
        self._reachable_since = time.monotonic()

    def refresh(self) -> None:
        """Read the registrations if they may have changed.

        Raises:
            RetryableError: the store is unavailable.
        """
        now = time.monotonic()
        if now - self._read_at >= self._tick_s:
            self.workers, self.health = self._kvs.workers(), self._kvs.workers_health()
            self._read_at = now

    def silent_s(self, status: WorkerStatus) -> float:
        """Return the seconds since a worker could have reported and did not."""
        return min(status.silent_s, time.monotonic() - self._reachable_since)

    def exclusions(self, now: float) -> tuple[Exclusion, ...]:
        """Return the exclusions of workers on broken or quarantined machines."""
        return machine_exclusions(self.workers, self.health, now)

    def remove_gone(self, fleet: Fleet) -> None:
        """Remove registrations of workers with a missing pod that is no longer requested."""
        for status in self.workers:
            pod = status.record.pod
            if pod is None or pod.name in fleet.pods or fleet.is_wanted(pod.name):
                continue
            try:
                self._kvs.remove_worker(status.record.worker, status.record.incarnation)
            except (NotFoundError, ConflictError):
                pass  # already removed, or present again
            else:
                log.info("removed %s: its pod %s is no longer wanted", status.record.worker, pod.name)
            self.invalidate()
