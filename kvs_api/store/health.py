"""Health of workers' machines in the store: checks, quarantine, slow labels and incidents.

Called by views of the REST API for people, the controller and agents. The rules are in
`cerebro.state.worker_quarantine`. A change is written only if no other change came in between; otherwise the rules
are applied to the new state.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from cerebro import errors
from cerebro.contract.records import WorkerStatus
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
from cerebro.state import worker_quarantine
from cerebro.state.worker_quarantine import Change
from kvs_api.store import keys
from kvs_api.store.database import text, translated
from kvs_api.store.experiment_quarantine import QuarantineStore

_TRIES = 20


class HealthStore(QuarantineStore):
    """Reads and changes of health records and incidents of workers."""

    def workers_health(self) -> HealthAnswer:
        """Return the state of all machines."""
        return self._health()[0]

    def quarantine_worker(self, worker: str, request: QuarantineWorkerRequest) -> WorkerHealth:
        """See `KvsClient.quarantine_worker`."""

        def change(statuses: tuple[WorkerStatus, ...], known: HealthAnswer, now: float) -> Change:
            return worker_quarantine.quarantined(worker, request, statuses, known, now)

        return self._change(worker, change, term=request.term)

    def release_worker(self, worker: str, request: ReleaseRequest) -> WorkerHealth:
        """See `KvsClient.release_worker`."""

        def change(statuses: tuple[WorkerStatus, ...], known: HealthAnswer, now: float) -> Change:
            return worker_quarantine.released(worker, request, statuses, known, now)

        return self._change(worker, change, term=request.term)

    def request_check(self, worker: str, request: CheckRequest) -> WorkerHealth:
        """See `KvsClient.request_check`."""

        def change(statuses: tuple[WorkerStatus, ...], known: HealthAnswer, now: float) -> Change:
            return worker_quarantine.check_requested(worker, request, statuses, known, now)

        entry = {"experiment": "", "task": "", "attempt": 0, "check": request.reason}
        return self._change(worker, change, term=request.term, entry=json.dumps(entry))

    def report_check(self, worker: str, result: CheckResult) -> None:
        """See `KvsClient.report_check`."""

        def change(statuses: tuple[WorkerStatus, ...], known: HealthAnswer, now: float) -> Change:
            worker_quarantine.registered(worker, statuses)
            return worker_quarantine.check_completed(worker, result, known, now)

        self._change(worker, change)

    def report_pace(self, worker: str, request: PaceRequest) -> None:
        """See `KvsClient.report_pace`."""

        def change(statuses: tuple[WorkerStatus, ...], known: HealthAnswer, now: float) -> Change:
            return worker_quarantine.labelled(worker, request, statuses, known, now)

        self._change(worker, change, term=request.term)

    def report_incident(self, request: IncidentRequest) -> None:
        """See `KvsClient.report_incident`."""
        for _ in range(_TRIES):
            known, seq, now = self._health()
            incident = worker_quarantine.new_incident(request, known, now)
            if incident is None or self._write(request.worker, seq, None, incident, term=request.term):
                return

    def _change(
        self,
        worker: str,
        change: Callable[[tuple[WorkerStatus, ...], HealthAnswer, float], Change],
        *,
        term: int | None = None,
        entry: str | None = None,
    ) -> WorkerHealth:
        for _ in range(_TRIES):
            known, seq, now = self._health()
            changed = change(self.workers(), known, now)
            is_same = changed.health == known.of(worker) and changed.incident is None
            if is_same or self._write(worker, seq, changed.health, changed.incident, term=term, entry=entry):
                return changed.health
        raise errors.StoreUnavailableError(f"{worker}: too much changes at once; try again")

    def _health(self) -> tuple[HealthAnswer, int, float]:
        """Return the state, the number of its newest change, and the time in seconds."""
        with translated():
            pipe = self._redis.pipeline()
            pipe.hgetall(keys.HEALTH)
            pipe.lrange(f"{keys.HEALTH}:incidents", 0, -1)
            pipe.get(f"{keys.HEALTH}:seq")
            pipe.time()
            workers, incidents, seq, (seconds, micros) = pipe.execute()
        answer = HealthAnswer(
            workers={text(name): WorkerHealth.model_validate_json(each) for name, each in workers.items()},
            incidents=tuple(Incident.model_validate_json(each) for each in incidents),
        )
        return answer, int(seq or 0), seconds + micros / 1e6

    def _write(
        self,
        worker: str,
        after: int,
        record: WorkerHealth | None,
        incident: Incident | None,
        *,
        term: int | None = None,
        entry: str | None = None,
    ) -> bool:
        """Write a change. Returns False if the state has changed since `after`."""
        call: dict[str, Any] = {
            "call": "health",
            "health": keys.HEALTH,
            "after": after,
            "worker": keys.worker(worker),
            "name": worker,
            "inbox": keys.inbox(worker),
            "cluster": keys.CLUSTER,
        }
        values = {
            "term": term,
            "record": record.model_dump_json() if record is not None else None,
            "incident": incident.model_dump_json() if incident is not None else None,
            "entry": entry,
        }
        answer = self._run(call | {name: value for name, value in values.items() if value is not None})
        if "missing" in answer:
            raise errors.NotFoundError(f"no worker {worker!r} is registered: see `cerebro status`")
        return "outdated" not in answer
