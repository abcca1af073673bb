"""The part of `cerebro.runtime.kvs.client.KvsClient` for workers' machines: checks, quarantine, incidents.

Workers report checks; the controller and the CLI request checks and quarantine workers. kvs_api stores the facts.
"""

from __future__ import annotations

from urllib.parse import quote

from cerebro.contract.stored.health import (
    CheckRequest,
    CheckResult,
    HealthAnswer,
    IncidentRequest,
    PaceRequest,
    QuarantineWorkerRequest,
    ReleaseRequest,
    WorkerHealth,
)
from cerebro.runtime.kvs.transport import Transport


class MachineCalls(Transport):
    """A part of `cerebro.runtime.kvs.client.KvsClient`."""

    def workers_health(self) -> HealthAnswer:
        """Return checks, quarantine and incidents of all machines."""
        return self.call("GET", "/v1/cluster/health", HealthAnswer)

    def quarantine_worker(self, worker: str, request: QuarantineWorkerRequest) -> WorkerHealth:
        """Quarantine a worker. Idempotent; a person's reason replaces the controller's.

        Replicas that only this worker holds are made on other workers.

        Raises:
            NotFoundError: no worker of this name is registered.
            ConflictError: it is needed (the message names affected runs), or another controller leads.
        """
        return self.call("PUT", f"/v1/workers/{_quoted(worker)}/quarantine", WorkerHealth, request)

    def release_worker(self, worker: str, request: ReleaseRequest) -> WorkerHealth:
        """Release a worker from quarantine.

        Raises:
            NotFoundError: no worker of this name is registered.
            ConflictError: it is not quarantined.
        """
        return self.call("POST", f"/v1/workers/{_quoted(worker)}/release", WorkerHealth, request)

    def request_check(self, worker: str, request: CheckRequest) -> WorkerHealth:
        """Request a machine check from a worker. Its result appears in `health`.

        Raises:
            NotFoundError: no worker of this name is registered.
            ConflictError: the worker trains no models, or another controller leads.
        """
        return self.call("POST", f"/v1/workers/{_quoted(worker)}/check", WorkerHealth, request)

    def report_check(self, worker: str, result: CheckResult) -> None:
        """Report the result of the worker's machine check."""
        self.send("PUT", f"/v1/workers/{_quoted(worker)}/check", result.model_dump_json().encode(), 0.0)

    def report_pace(self, worker: str, request: PaceRequest) -> None:
        """Report the speed of a worker's sub-epochs relative to other workers. Controller only.

        Raises:
            NotFoundError: no worker of this name is registered.
            ConflictError: another controller leads.
        """
        self.send("PUT", f"/v1/workers/{_quoted(worker)}/pace", request.model_dump_json().encode(), 0.0)

    def report_incident(self, request: IncidentRequest) -> None:
        """Report an incident of a worker's machine, for people. Controller only; `ConflictError` if another leads."""
        self.send("POST", "/v1/cluster/health", request.model_dump_json().encode(), 0.0)


def _quoted(text: str) -> str:
    return quote(text, safe="")
