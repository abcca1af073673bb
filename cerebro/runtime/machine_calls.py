"""Calls of kvs_api about workers' machines: checks, quarantine, incidents."""

from __future__ import annotations

from urllib.parse import quote

from cerebro.contract.health import (
    CheckRequest,
    CheckResult,
    HealthAnswer,
    IncidentRequest,
    PaceRequest,
    QuarantineWorkerRequest,
    ReleaseRequest,
    WorkerHealth,
)
from cerebro.runtime.transport import Transport


class MachineCalls(Transport):
    """A part of `cerebro.runtime.kvs.KvsClient`."""

    def workers_health(self) -> HealthAnswer:
        """Checks, quarantine and incidents of all machines."""
        return self.call("GET", "/v1/cluster/health", HealthAnswer)

    def quarantine_worker(self, worker: str, request: QuarantineWorkerRequest) -> WorkerHealth:
        """Give a worker nothing more; what only it holds is made elsewhere. Twice is once; a person's reason replaces
        the controller's.

        Raises:
            NotFoundError: nobody of that name is registered.
            ConflictError: it cannot be spared; the message says who would be affected. Or another controller leads.
        """
        return self.call("PUT", f"/v1/workers/{_quoted(worker)}/quarantine", WorkerHealth, request)

    def release_worker(self, worker: str, request: ReleaseRequest) -> WorkerHealth:
        """Give a worker tasks again.

        Raises:
            NotFoundError: nobody of that name is registered.
            ConflictError: it is not quarantined.
        """
        return self.call("POST", f"/v1/workers/{_quoted(worker)}/release", WorkerHealth, request)

    def ask_check(self, worker: str, request: CheckRequest) -> WorkerHealth:
        """Have a worker check its machine; what it finds is in `health` once it is done.

        Raises:
            NotFoundError: nobody of that name is registered.
            ConflictError: the worker trains no models, or another controller leads.
        """
        return self.call("POST", f"/v1/workers/{_quoted(worker)}/check", WorkerHealth, request)

    def tell_check(self, worker: str, result: CheckResult) -> None:
        """The worker's: what it found."""
        self.send("PUT", f"/v1/workers/{_quoted(worker)}/check", result.model_dump_json().encode(), 0.0)

    def tell_pace(self, worker: str, request: PaceRequest) -> None:
        """The controller's: how long a worker's sub-epochs take, against the others'.

        Raises:
            NotFoundError: nobody of that name is registered.
            ConflictError: another controller leads.
        """
        self.send("PUT", f"/v1/workers/{_quoted(worker)}/pace", request.model_dump_json().encode(), 0.0)

    def tell_incident(self, request: IncidentRequest) -> None:
        """The controller's: something that people are to know of a worker's machine; `ConflictError` if another one
        leads."""
        self.send("POST", "/v1/cluster/health", request.model_dump_json().encode(), 0.0)


def _quoted(text: str) -> str:
    return quote(text, safe="")
