"""The part of the in-memory store on workers' machines: checks, quarantine, incidents."""

from __future__ import annotations

from cerebro.contract.stored.health import (
    CheckRequest,
    CheckResult,
    HealthAnswer,
    Incident,
    IncidentRequest,
    PaceRequest,
    QuarantineWorkerRequest,
    ReleaseRequest,
    WorkerHealth,
)
from cerebro.contract.tasks.inbox import InboxItem
from cerebro.errors import ConflictError
from cerebro.state import worker_quarantine
from cerebro.state.worker_quarantine import Change
from research.simulation.worker_store import VirtualWorkerStore


class VirtualMachineStore(VirtualWorkerStore):
    """The methods of `cerebro.runtime.kvs.machine_calls.MachineCalls`, with the same meaning."""

    def remove_worker(self, worker: str, incarnation: str | None = None) -> None:
        """Remove a worker and the state of its machine."""
        super().remove_worker(worker, incarnation)
        left = {name: each for name, each in self._health.workers.items() if name != worker}
        self._health = self._health.model_copy(update={"workers": left})

    def workers_health(self) -> HealthAnswer:
        """Return the state of all machines."""
        return self._health

    def quarantine_worker(self, worker: str, request: QuarantineWorkerRequest) -> WorkerHealth:
        """Quarantine a worker."""
        self._require_term(request.term)
        return self._keep_health(
            worker,
            worker_quarantine.quarantined(worker, request, self.workers(), self._health, self._now()),
        )

    def release_worker(self, worker: str, request: ReleaseRequest) -> WorkerHealth:
        """Release a worker from quarantine."""
        self._require_term(request.term)
        change = worker_quarantine.released(worker, request, self.workers(), self._health, self._now())
        return self._keep_health(worker, change)

    def request_check(self, worker: str, request: CheckRequest) -> WorkerHealth:
        """Request a node check from a worker."""
        self._require_term(request.term)
        before = self._health.of(worker)
        change = worker_quarantine.check_requested(worker, request, self.workers(), self._health, self._now())
        if change.health != before:
            inbox = self._workers[worker].inbox
            inbox.append(
                InboxItem(seq=len(inbox) + 1, experiment="", task="", attempt=0, check=request.reason)
            )
        return self._keep_health(worker, change)

    def report_check(self, worker: str, result: CheckResult) -> None:
        """Store the result of a worker's node check."""
        worker_quarantine.registered(worker, self.workers())
        self._keep_health(
            worker, worker_quarantine.check_completed(worker, result, self._health, self._now())
        )

    def report_pace(self, worker: str, request: PaceRequest) -> None:
        """Store the pace of a worker's sub-epochs."""
        self._require_term(request.term)
        change = worker_quarantine.labelled(worker, request, self.workers(), self._health, self._now())
        self._keep_health(worker, change)

    def report_incident(self, request: IncidentRequest) -> None:
        """Store an incident."""
        self._require_term(request.term)
        self._publish(worker_quarantine.new_incident(request, self._health, self._now()))

    def _require_term(self, term: int | None) -> None:
        if term is not None and term != self._leader.term:
            raise ConflictError(f"leadership term {term} has ended")

    def _keep_health(self, worker: str, change: Change) -> WorkerHealth:
        if change.health != self._health.of(worker):
            workers = {**self._health.workers, worker: change.health}
            self._health = self._health.model_copy(update={"workers": workers})
            self._notifications += 1
        self._publish(change.incident)
        return change.health

    def _publish(self, incident: Incident | None) -> None:
        if incident is not None:
            incidents = (*self._health.incidents, incident)[-200:]
            self._health = self._health.model_copy(update={"incidents": incidents})
