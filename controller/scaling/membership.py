"""The registered workers and their number.

Effects only: it reads registrations, passes size requests to the cluster manager, removes registrations of
workers that will not return, and reports why pods do not start. `controller.scaling.cluster_snapshot` and
`controller.decisions.decide` derive the effect on tasks. Owned by the loop; not thread-safe.
"""

from __future__ import annotations

import logging
import math
import time
from typing import Any

from cerebro.contract.records import AUTOSCALER, SizeRequest, Troubles, WorkerStatus
from cerebro.contract.stored.health import HealthAnswer
from cerebro.errors import ConflictError, NotFoundError, PermanentError, RetryableError
from cerebro.runtime.kvs.client import KvsClient
from cerebro.state.exclusions import excluded_workers
from cerebro.state.worker_quarantine import machine_exclusions
from controller.exclusions.memory_limits import MemoryLimits
from controller.scaling.arrivals import Arrivals
from controller.scaling.autoscaler.autoscaler import SizeHistory
from controller.scaling.autoscaler.rest import DesiredSize, Rest, RestRules
from controller.scaling.autoscaler.use import Use
from controller.scaling.cluster_snapshot import ClusterSnapshot, are_coming, trained_on, worker_view
from controller.scaling.orchestrator import Fleet, Orchestrator

log = logging.getLogger(__name__)

NO_MANAGER = (
    "this cluster has no cluster manager that could start or end workers: on one machine, run `cerebro scale` there, "
    "without CEREBRO_SERVER"
)

_AGAIN_S = 30.0
"""Seconds before the autoscaler repeats a request that the cluster manager has not confirmed."""


class Membership:
    """The registered workers and their state.

    Args:
        orchestrator: the cluster manager, if any.
        lease_s: seconds of silence after which a worker is lost.
        tick_s: maximum seconds between two reads of the registrations.
        most_memory: maximum bytes for a worker's memory; 0 leaves it unchanged.
        rest: settings of scale to zero.
        installed: number of workers in the chart's values; 0 if unknown.

    Attributes:
        limits: the memory of the workers' pods.
    """

    def __init__(
        self,
        kvs: KvsClient,
        orchestrator: Orchestrator | None,
        *,
        lease_s: float,
        tick_s: float,
        most_memory: int = 0,
        rest: RestRules | None = None,
        installed: int = 0,
    ) -> None:
        self._kvs, self._orchestrator = kvs, orchestrator
        self._lease_s, self._tick_s = lease_s, tick_s
        self.limits = MemoryLimits(orchestrator, most_memory)
        self._workers: tuple[WorkerStatus, ...] = ()
        self._health = HealthAnswer()
        self._read_at = self._tended_at = -tick_s
        self._reachable_since = time.monotonic()
        self._published_troubles: Troubles | None = None
        self._may_have_request = True
        self._arrivals = Arrivals()
        self._rest_rules = rest or RestRules()
        self._rest, self._is_recalled = Rest(self._rest_rules), False
        """True after the state left by the previous controller has been loaded."""
        self._is_pausing = False
        self._requested_size: tuple[DesiredSize | None, float] = (None, -math.inf)
        """The newest request because of use or disuse, and its time."""
        self._capacity_limit: tuple[int, str] | None = None
        """The number after a reduction for lack of nodes, and its message."""
        self._now = 0.0
        self._is_used = False
        self._size: int | None = None
        """Number of requested pods at the last check."""
        self._installed, self._installed_for = installed, ""
        """The set and number applied last, as in `Troubles.installed`."""
        self._chosen_at, self._changed_at = -math.inf, -math.inf
        """Times of the last changes by a person and by the autoscaler."""
        self._autoscaler_size: int | None = None
        """The autoscaler's last request, until another author changes the number."""
        self._emptying_since: float | None = None
        self._emptied_at = -math.inf
        """Time of a person's request for zero workers; and the same once there are none."""

    def take_over(self) -> None:
        """Reset after a change of leader: another controller may have published, or a person chosen a size."""
        self._published_troubles, self._size, self._autoscaler_size = None, None, None
        self._arrivals, self._is_recalled = Arrivals(), False
        self.hear()

    def _recall(self) -> None:
        if not self._is_recalled:
            troubles = self._kvs.troubles()
            self._rest = Rest(self._rest_rules, previous_size=troubles.before_rest)
            self._size, self._installed_for = troubles.size, troubles.installed
            self._chosen_at = -math.inf if troubles.chosen_at is None else troubles.chosen_at
            self._emptied_at = -math.inf
            if troubles.emptied_at is not None and troubles.size == 0:
                self._emptied_at = troubles.emptied_at
            elif troubles.emptied_at is not None:
                self._emptying_since = troubles.emptied_at
            self._is_recalled = True

    def hear(self) -> None:
        """React to a notification: workers changed, or there is a request."""
        self._may_have_request = True
        self.look_again()

    def look_again(self) -> None:
        """Mark the data as outdated; it is read before the next decision."""
        self._read_at = self._tended_at = -self._tick_s

    def store_was_away(self) -> None:
        """Restart the count of silence: workers could not report."""
        self._reachable_since = time.monotonic()

    def snapshot(self, now: float) -> ClusterSnapshot:
        """Return the present workers; `now` is the time of a new event.

        Raises:
            RetryableError: the store is unavailable.
        """
        self._now = now
        self._recall()
        self._read()
        fleet = self._fleet()
        self._see_size(fleet)
        is_waking = fleet is not None and self._rest.is_waking(fleet.size)
        self._arrivals.see(self._workers, fleet, time.monotonic(), is_waking=is_waking)
        reachable_s = time.monotonic() - self._reachable_since
        devices, exclusions = trained_on(self._workers), machine_exclusions(self._workers, self._health, now)
        views = {
            status.record.worker: worker_view(
                status,
                fleet,
                silent_s=min(status.silent_s, reachable_s),
                lease_s=self._lease_s,
                devices=devices,
            )
            for status in self._workers
        }
        excluded = excluded_workers(exclusions)
        return ClusterSnapshot(
            now=now,
            workers={name: view for name, view in views.items() if name not in excluded},
            excluded_views={name: view for name, view in views.items() if name in excluded},
            exclusions=exclusions,
            is_filling=self._arrivals.is_filling,
            is_awaited=self._arrivals.is_awaited,
            growth=self.limits.update(self._workers, fleet),
        )

    @property
    def statuses(self) -> tuple[WorkerStatus, ...]:
        """All registered workers, at the time of the newest snapshot."""
        return self._workers

    @property
    def health(self) -> HealthAnswer:
        """State of their machines at that time."""
        return self._health

    def _see_size(self, fleet: Fleet | None) -> None:
        """Record manual changes of the number of pods: neither the autoscaler nor the chart's values requested them.

        After a change of leader, the new controller compares the number with the previous controller's record. Without
        a record, it does not take the number for a manual choice.
        """
        if fleet is None or fleet.size == self._size:
            return
        self._emptied_at = -math.inf
        if fleet.size != self._autoscaler_size:
            if self._size is not None:
                self._chosen_at = self._now
            is_known = self._size is not None and self._size > 0
            if not fleet.size and (is_known or self._emptying_since is not None):
                self._emptied_at = self._now if self._emptying_since is None else self._emptying_since
            self._autoscaler_size = None
        self._emptying_since = None
        if self._capacity_limit is not None and self._capacity_limit[0] == self._size:
            self._capacity_limit = None
        self._size = fleet.size

    def size_history(self) -> SizeHistory:
        """Return the history of the number of workers."""
        fleet = self._fleet()
        if fleet is None:
            # An unreachable cluster manager may have another number now.
            is_changing = self._orchestrator is not None
        else:
            # Quarantined pods and pods without a node count for the manager but not for the forecast: a
            # reduction would end working ones.
            is_changing = (
                are_coming(self._workers, fleet)
                or any(not fleet.is_wanted(name) for name in fleet.pods)
                or fleet.size != self._at_work(fleet)
            )
        return SizeHistory(changed_at=self._changed_at, chosen_at=self._chosen_at, is_changing=is_changing)

    def _at_work(self, fleet: Fleet) -> int:
        """Return the number of training pods that may get tasks."""
        excluded = excluded_workers(machine_exclusions(self._workers, self._health, self._now))
        here = [
            status.record
            for status in self._workers
            if not status.is_lost and status.record.worker not in excluded
        ]
        return sum(
            "train" in record.kinds and record.pod is not None and record.pod.name in fleet.pods
            for record in here
        )

    def rest(self, use: Use, *, bounds: tuple[int, int] | None = None) -> None:
        """Release unused workers, request them again for a run, and drop requests without nodes.

        Args:
            use: demand of the runs.
            bounds: minimum and maximum workers that the runs request.

        Raises:
            RetryableError: the store is unavailable.
        """
        fleet = self._fleet()
        if fleet is None:
            return
        stalled = self._arrivals.stalled()
        request = self._rest.update(
            self._now,
            size=fleet.size,
            use=use,
            is_awaited=self._arrivals.is_awaited,
            chosen_at=self._chosen_at,
            emptied_at=self._emptied_at,
            bounds=bounds,
            stalled=stalled,
        )
        self._is_used = use.is_used or use.is_full
        if request is None or (
            request == self._requested_size[0] and self._now - self._requested_size[1] < _AGAIN_S
        ):
            return
        self._requested_size = request, self._now
        if (
            self.ask_for(request.workers, request.reason)
            and stalled is not None
            and request.reason == stalled[1]
        ):
            self._chosen_at = self._now  # no immediate new request for a worker that found no node
            self._capacity_limit = (
                request.workers,
                f"{request.workers} of {fleet.size} workers are wanted now: {request.reason}",
            )

    def ask_for(self, workers: int, reason: str) -> bool:
        """Request a number of workers, with a reason; False while a person's request is pending.

        Raises:
            RetryableError: the store is unavailable.
        """
        waiting = self._kvs.size_request()
        if waiting is not None and not waiting.problem and waiting.by != AUTOSCALER:
            log.info("no %s workers are asked for: %s has asked for %s", workers, waiting.by, waiting.workers)
            return False
        self._autoscaler_size, self._changed_at = workers, self._now
        self._kvs.request_size(SizeRequest(workers=workers, by=AUTOSCALER, reason=reason))
        self._may_have_request = True
        return True

    @property
    def is_pausing(self) -> bool:
        """True if runs should pause because all workers will be released."""
        return self._is_pausing

    def tend(self, now: float | None = None, *, is_running: bool = False) -> None:
        """Apply size requests once per tick. Only for the leading controller.

        Args:
            now: as for `snapshot`; by default the last value.
            is_running: True if an unpaused run may have started.

        Raises:
            RetryableError: the store is unavailable.
        """
        monotonic = time.monotonic()
        if monotonic - self._tended_at < self._tick_s:
            return
        self._now = self._now if now is None else now
        self._recall()
        self._tended_at = monotonic
        self._install()
        self._resize(is_running)
        fleet = self._fleet()
        if fleet is not None:
            self._see_size(fleet)
            self._read()
            self._remove_gone(fleet)
            self._publish_troubles(fleet)

    def _read(self) -> None:
        now = time.monotonic()
        if now - self._read_at >= self._tick_s:
            self._workers, self._health = self._kvs.workers(), self._kvs.workers_health()
            self._read_at = now

    def _fleet(self) -> Fleet | None:
        return self._orchestrator.fleet() if self._orchestrator else None

    def _install(self) -> None:
        """Scale a new worker set to the chart's number, and any set when that number has changed."""
        fleet = self._fleet()
        if self._orchestrator is None or fleet is None or not self._installed:
            return
        wanted = f"{fleet.set_uid}:{self._installed}"
        if self._installed_for == wanted:
            return
        uid, _, number = self._installed_for.rpartition(":")
        previous_size = int(number) if number and uid == fleet.set_uid else fleet.annotated_size
        self._see_size(fleet)
        if self._installed not in (previous_size, fleet.size):
            try:
                self._orchestrator.scale(self._installed)
            except (RetryableError, PermanentError) as error:
                log.warning("%s workers of the chart's values cannot be had yet: %s", self._installed, error)
                return
            log.info("asked the cluster manager for %s workers, as the chart's values say", self._installed)
            if previous_size is None:
                self._autoscaler_size = self._installed  # the installation's number is not a person's choice
        self._installed_for = wanted

    def _resize(self, is_running: bool) -> None:
        if not self._may_have_request:
            return
        request = self._kvs.size_request()
        self._may_have_request = request is not None and not request.problem
        self._is_pausing = False
        if request is None or request.problem:
            return
        if request.workers or request.by == AUTOSCALER:
            self._emptying_since = None
        elif self._emptying_since is None:
            self._emptying_since = self._now
        if (
            request.by == AUTOSCALER
            and request.workers < (self._size or 0)
            and self._is_used
            and not request.workers
        ):
            self._kvs.withdraw_size_request(request.workers)  # a run has been requested since
            return
        if not request.workers and request.pause and is_running:
            self._is_pausing = True
            return
        try:
            problem = self._apply(request)
        except RetryableError as error:
            log.warning(
                "%s workers are asked for, but the cluster manager is away: %s", request.workers, error
            )
            return
        try:
            if problem:
                self._emptying_since = None
                self._kvs.request_size(request.model_copy(update={"problem": problem}))
            else:
                # Store the choice before the request is withdrawn: the next leader needs one of the two.
                self._publish(
                    (self._published_troubles or self._kvs.troubles()).model_copy(
                        update=self._choice(request.workers)
                    )
                )
                self._kvs.withdraw_size_request(request.workers)
        except ConflictError:
            log.info("the request for %s workers was replaced meanwhile", request.workers)

    def _apply(self, request: SizeRequest) -> str:
        """Pass a request to the cluster manager; return why it fails, or ""."""
        if self._orchestrator is None:
            return NO_MANAGER
        try:
            self._orchestrator.scale(request.workers)
        except PermanentError as error:
            log.warning("%s workers cannot be had: %s", request.workers, error)
            return str(error)
        self._autoscaler_size = request.workers if request.by == AUTOSCALER else None
        if request.by != AUTOSCALER:
            self._chosen_at = self._now
        why = f" ({request.reason})" if request.reason else ""
        log.info(
            "asked the cluster manager for %s workers, for %s%s",
            request.workers,
            request.by or "somebody",
            why,
        )
        return ""

    def _remove_gone(self, fleet: Fleet) -> None:
        """Remove registrations of workers with a missing pod that is no longer requested."""
        for status in self._workers:
            pod = status.record.pod
            if pod is None or pod.name in fleet.pods or fleet.is_wanted(pod.name):
                continue
            try:
                self._kvs.remove_worker(status.record.worker, status.record.incarnation)
            except (NotFoundError, ConflictError):
                pass  # already removed, or present again
            else:
                log.info("removed %s: its pod %s is no longer wanted", status.record.worker, pod.name)
            self._read_at = -self._tick_s

    def _capacity_text(self, size: int) -> str:
        """Return why there are fewer workers than requested, until another number is chosen."""
        return (
            self._capacity_limit[1]
            if self._capacity_limit is not None and self._capacity_limit[0] == size
            else ""
        )

    def _publish_troubles(self, fleet: Fleet) -> None:
        troubles = Troubles(
            pods=fleet.troubles(),
            note=self._arrivals.progress_text
            or self._rest.status_text(fleet.size)
            or self._capacity_text(fleet.size),
            before_rest=self._rest.previous_size,
            **self._choice(fleet.size),
        )
        self._publish(troubles)

    def _choice(self, size: int) -> dict[str, Any]:
        """Return the fields of `Troubles` that say who chose the number of workers."""
        return {
            "size": size,
            "chosen_at": None if self._chosen_at == -math.inf else self._chosen_at,
            "emptied_at": self._none_since,
            "installed": self._installed_for,
        }

    @property
    def _none_since(self) -> float | None:
        """Time when a person chose zero workers, if that still holds."""
        return self._emptying_since if self._emptied_at == -math.inf else self._emptied_at

    def _publish(self, troubles: Troubles) -> None:
        if troubles != self._published_troubles:
            self._kvs.set_troubles(troubles)
            self._published_troubles = troubles
