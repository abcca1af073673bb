"""The number of workers: requests by people, the chart's values and the autoscaler, for the cluster manager.

`controller.scaling.membership` passes requests on once per tick (`reconcile`); `controller.loop.scaling` adapts the
number to the open runs (`adapt`, `request`). It reads and writes the store's size request and `WorkerSetStatus`. It
chooses no number itself: the pure rules are in `controller.scaling.autoscaler`, the authors in
`controller.scaling.size_record`.
"""

from __future__ import annotations

import logging
import math

from cerebro.contract.records import AUTOSCALER, SizeRequest, WorkerSetStatus
from cerebro.errors import ConflictError, PermanentError, RetryableError
from cerebro.runtime.kvs.client import KvsClient
from cerebro.state.exclusions import excluded_workers
from controller.scaling.arrivals import Arrivals
from controller.scaling.autoscaler.autoscaler import SizeHistory
from controller.scaling.autoscaler.scale_to_zero import DesiredSize, ScaleToZero, ScaleToZeroRules
from controller.scaling.autoscaler.use import Use
from controller.scaling.cluster_snapshot import are_coming
from controller.scaling.orchestrator import Fleet, Orchestrator
from controller.scaling.registrations import Registrations
from controller.scaling.size_record import SizeRecord

log = logging.getLogger(__name__)

NO_MANAGER = (
    "this cluster has no cluster manager that could start or end workers: on one machine, run `cerebro scale` there, "
    "without CEREBRO_SERVER"
)

_AGAIN_S = 30.0
"""Seconds before the autoscaler repeats a request that the cluster manager has not confirmed."""


class WorkerSetSize:
    """Scales the worker set by stored requests, and requests workers for runs. Owned by the loop; not thread-safe.

    A request is stored first, so a person's request and the autoscaler's never overlap, and a new leader applies an
    unfinished one.

    Args:
        orchestrator: the cluster manager, if any.
        rules: settings of scale to zero.
        installed: number of workers in the chart's values; 0 if unknown.

    Attributes:
        record: who requested the number, and when.
        arrivals: the starting pods.
        is_pausing: True if runs should pause because all workers will be released.
    """

    def __init__(
        self,
        kvs: KvsClient,
        orchestrator: Orchestrator | None,
        registrations: Registrations,
        *,
        rules: ScaleToZeroRules,
        installed: int = 0,
    ) -> None:
        self._kvs, self._orchestrator, self._registrations = kvs, orchestrator, registrations
        self._rules, self._installed = rules, installed
        self.record, self.arrivals, self._scale_to_zero = SizeRecord(), Arrivals(), ScaleToZero(rules)
        self.is_pausing = False
        self._is_recalled = False
        """True after the previous controller's record has been loaded."""
        self._published: WorkerSetStatus | None = None
        self._may_have_request = True
        self._newest: tuple[DesiredSize | None, float] = (None, -math.inf)
        """The newest request because of use or disuse, and its time."""
        self._is_used = False
        self._now = 0.0

    def take_over(self) -> None:
        """Reset after a change of leader: another controller may have published, or a person chosen a size."""
        self._published, self.arrivals, self._is_recalled = None, Arrivals(), False
        self.record.forget()

    def on_notification(self) -> None:
        """React to a notification: there may be a request."""
        self._may_have_request = True

    def refresh(self, now: float) -> Fleet | None:
        """Return the pods; `None` without a cluster manager, or while it is unreachable.

        Args:
            now: time of a new event.

        Raises:
            RetryableError: the store is unavailable.
        """
        self._now = now
        self._recall()
        fleet = self._fleet()
        if fleet is not None:
            self.record.observe(fleet.size, now)
        return fleet

    def is_scaling_up(self, fleet: Fleet | None) -> bool:
        """True while the cluster scales up from zero."""
        return fleet is not None and self._scale_to_zero.is_scaling_up(fleet.size)

    def history(self) -> SizeHistory:
        """Return the history of the number of workers, for forecasts."""
        fleet = self._fleet()
        if fleet is None:
            # An unreachable cluster manager may have another number now.
            is_changing = self._orchestrator is not None
        else:
            # Quarantined pods and pods without a node count for the manager but not for the forecast: a
            # reduction would end working ones.
            is_changing = (
                are_coming(self._registrations.workers, fleet)
                or any(not fleet.is_wanted(name) for name in fleet.pods)
                or fleet.size != self._num_training(fleet)
            )
        return SizeHistory(
            changed_at=self.record.changed_at, chosen_at=self.record.chosen_at, is_changing=is_changing
        )

    def adapt(self, use: Use, *, bounds: tuple[int, int] | None = None) -> None:
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
        stalled = self.arrivals.stalled()
        desired = self._scale_to_zero.update(
            self._now,
            size=fleet.size,
            use=use,
            is_awaited=self.arrivals.is_awaited,
            chosen_at=self.record.chosen_at,
            scaled_to_zero_at=self.record.scaled_to_zero_at,
            bounds=bounds,
            stalled=stalled,
        )
        self._is_used = use.is_used or use.is_full
        if desired is None or (desired == self._newest[0] and self._now - self._newest[1] < _AGAIN_S):
            return
        self._newest = desired, self._now
        is_for_lack_of_nodes = stalled is not None and desired.reason == stalled[1]
        if self.request(desired.workers, desired.reason) and is_for_lack_of_nodes:
            self.record.limited(desired.workers, desired.reason, self._now)

    def request(self, workers: int, reason: str) -> bool:
        """Request a number of workers for the autoscaler; False while a person's request is pending.

        Raises:
            RetryableError: the store is unavailable.
        """
        waiting = self._kvs.size_request()
        if waiting is not None and not waiting.problem and waiting.by != AUTOSCALER:
            log.info("no %s workers are asked for: %s has asked for %s", workers, waiting.by, waiting.workers)
            return False
        self.record.requested(workers, self._now)
        self._kvs.request_size(SizeRequest(workers=workers, by=AUTOSCALER, reason=reason))
        self._may_have_request = True
        return True

    def reconcile(self, now: float | None = None, *, is_running: bool) -> Fleet | None:
        """Pass the chart's number and a stored request to the cluster manager; return the pods, as `refresh`.

        Args:
            now: as for `refresh`; by default the last value.
            is_running: True if an unpaused run may have started.

        Raises:
            RetryableError: the store is unavailable.
        """
        self._now = self._now if now is None else now
        self._recall()
        self._install()
        self._resize(is_running)
        return self.refresh(self._now)

    def publish(self, fleet: Fleet) -> None:
        """Store problems of the pods, a message for people, and the record for the next leader."""
        note = self.arrivals.progress_text or self._scale_to_zero.status_text(fleet.size)
        status = WorkerSetStatus(
            pods=fleet.pod_problems(),
            note=note or self.record.capacity_text(fleet.size),
            size_before_zero=self._scale_to_zero.previous_size,
            **self.record.to_store(fleet.size),
        )
        self._publish(status)

    def _publish(self, status: WorkerSetStatus) -> None:
        if status != self._published:
            self._kvs.set_worker_set_status(status)
            self._published = status

    def _recall(self) -> None:
        if not self._is_recalled:
            stored = self._kvs.worker_set_status()
            self._scale_to_zero = ScaleToZero(self._rules, previous_size=stored.size_before_zero)
            self.record.recall(stored)
            self._is_recalled = True

    def _fleet(self) -> Fleet | None:
        return self._orchestrator.fleet() if self._orchestrator else None

    def _num_training(self, fleet: Fleet) -> int:
        """Return the number of training pods that may get tasks."""
        excluded = excluded_workers(self._registrations.exclusions(self._now))
        here = [
            status.record
            for status in self._registrations.workers
            if not status.is_lost and status.record.worker not in excluded
        ]
        return sum(
            "train" in record.kinds and record.pod is not None and record.pod.name in fleet.pods
            for record in here
        )

    def _install(self) -> None:
        """Scale a new worker set to the chart's number, and any set when that number has changed."""
        fleet = self._fleet()
        if self._orchestrator is None or fleet is None or not self._installed:
            return
        wanted = f"{fleet.set_uid}:{self._installed}"
        if self.record.installed == wanted:
            return
        uid, _, number = self.record.installed.rpartition(":")
        previous_size = int(number) if number and uid == fleet.set_uid else fleet.annotated_size
        self.record.observe(fleet.size, self._now)
        if self._installed not in (previous_size, fleet.size):
            try:
                self._orchestrator.scale(self._installed)
            except (RetryableError, PermanentError) as error:
                log.warning("%s workers of the chart's values cannot be had yet: %s", self._installed, error)
                return
            log.info("asked the cluster manager for %s workers, as the chart's values say", self._installed)
            if previous_size is None:
                self.record.scaled_at_installation(self._installed)
        self.record.installed = wanted

    def _resize(self, is_running: bool) -> None:
        """Apply the stored request, if there is one."""
        if not self._may_have_request:
            return
        request = self._kvs.size_request()
        self._may_have_request = request is not None and not request.problem
        self.is_pausing = False
        if request is None or request.problem:
            return
        self.record.observe_request(request, self._now)
        is_shrinking = request.workers < (self.record.size or 0)
        if request.by == AUTOSCALER and is_shrinking and self._is_used and not request.workers:
            self._kvs.withdraw_size_request(request.workers)  # a run has been requested since
            return
        if not request.workers and request.pause and is_running:
            self.is_pausing = True
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
                self.record.refused()
                self._kvs.request_size(request.model_copy(update={"problem": problem}))
            else:
                # Store the choice before the request is withdrawn: the next leader needs one of the two.
                published = self._published or self._kvs.worker_set_status()
                self._publish(published.model_copy(update=self.record.to_store(request.workers)))
                self._kvs.withdraw_size_request(request.workers)
        except ConflictError:
            log.info("the request for %s workers was replaced", request.workers)

    def _apply(self, request: SizeRequest) -> str:
        """Pass a request to the cluster manager; return why it fails, or ""."""
        if self._orchestrator is None:
            return NO_MANAGER
        try:
            self._orchestrator.scale(request.workers)
        except PermanentError as error:
            log.warning("%s workers cannot be had: %s", request.workers, error)
            return str(error)
        self.record.accepted(request, self._now)
        why = f" ({request.reason})" if request.reason else ""
        log.info(
            "asked the cluster manager for %s workers, for %s%s",
            request.workers,
            request.by or "somebody",
            why,
        )
        return ""
