"""The workers of the cluster: their registrations, their requested number, and the snapshot that decisions use.

The loop's facade: `snapshot` before each round of decisions, `reconcile` once per tick of the leader, which also
removes registrations of pods that will not return. `controller.scaling.cluster_snapshot` and
`controller.decisions.decide` derive the effect on tasks; nothing here writes a log.
"""

from __future__ import annotations

import time

from cerebro.runtime.kvs.client import KvsClient
from cerebro.state.exclusions import excluded_workers
from controller.exclusions.memory_limits import MemoryLimits
from controller.scaling.autoscaler.scale_to_zero import ScaleToZeroRules
from controller.scaling.cluster_snapshot import ClusterSnapshot, trained_on, worker_view
from controller.scaling.orchestrator import Orchestrator
from controller.scaling.registrations import Registrations
from controller.scaling.worker_set_size import WorkerSetSize


class Membership:
    """The registered workers, their number and their memory. Owned by the loop; not thread-safe.

    Args:
        orchestrator: the cluster manager, if any.
        lease_s: seconds of silence after which a worker is lost.
        tick_s: maximum seconds between two reads of the registrations.
        max_memory: maximum bytes for a worker's memory; 0 leaves it unchanged.
        scale_to_zero: settings of scale to zero.
        installed: number of workers in the chart's values; 0 if unknown.

    Attributes:
        registrations: the registered workers.
        size: the number of workers.
        limits: the memory of the workers' pods.
    """

    def __init__(
        self,
        kvs: KvsClient,
        orchestrator: Orchestrator | None,
        *,
        lease_s: float,
        tick_s: float,
        max_memory: int = 0,
        scale_to_zero: ScaleToZeroRules | None = None,
        installed: int = 0,
    ) -> None:
        self.registrations = Registrations(kvs, tick_s)
        self.size = WorkerSetSize(
            kvs,
            orchestrator,
            self.registrations,
            rules=scale_to_zero or ScaleToZeroRules(),
            installed=installed,
        )
        self.limits = MemoryLimits(orchestrator, max_memory)
        self._lease_s, self._tick_s = lease_s, tick_s
        self._reconciled_at = -tick_s

    def take_over(self) -> None:
        """Reset after a change of leader."""
        self.size.take_over()
        self.on_notification()

    def on_notification(self) -> None:
        """React to a notification: workers changed, or there is a request."""
        self.size.on_notification()
        self.invalidate()

    def invalidate(self) -> None:
        """Mark the data as outdated; it is read before the next decision."""
        self.registrations.invalidate()
        self._reconciled_at = -self._tick_s

    def snapshot(self, now: float) -> ClusterSnapshot:
        """Return the present workers; `now` is the time of a new event.

        Raises:
            RetryableError: the store is unavailable.
        """
        self.registrations.refresh()
        fleet = self.size.refresh(now)
        workers, arrivals = self.registrations.workers, self.size.arrivals
        arrivals.observe(workers, fleet, time.monotonic(), is_scaling_up=self.size.is_scaling_up(fleet))
        devices, exclusions = trained_on(workers), self.registrations.exclusions(now)
        views = {
            status.record.worker: worker_view(
                status,
                fleet,
                silent_s=self.registrations.silent_s(status),
                lease_s=self._lease_s,
                devices=devices,
            )
            for status in workers
        }
        excluded = excluded_workers(exclusions)
        return ClusterSnapshot(
            now=now,
            workers={name: view for name, view in views.items() if name not in excluded},
            excluded_views={name: view for name, view in views.items() if name in excluded},
            exclusions=exclusions,
            is_filling=arrivals.is_filling,
            is_awaited=arrivals.is_awaited,
            growth=self.limits.update(workers, fleet),
        )

    def reconcile(self, now: float | None = None, *, is_running: bool = False) -> None:
        """Apply size requests and remove workers without a pod, once per tick. Only for the leading controller.

        Args:
            now: as for `snapshot`; by default the last value.
            is_running: True if an unpaused run may have started.

        Raises:
            RetryableError: the store is unavailable.
        """
        monotonic = time.monotonic()
        if monotonic - self._reconciled_at < self._tick_s:
            return
        self._reconciled_at = monotonic
        fleet = self.size.reconcile(now, is_running=is_running)
        if fleet is not None:
            self.registrations.refresh()
            self.registrations.remove_gone(fleet)
            self.size.publish(fleet)
