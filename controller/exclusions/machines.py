"""Effects of machine health: checks, quarantines, retries of models and labels of slow workers.

`controller.loop.cluster_facts` calls it in every round of the leading controller. `controller.exclusions.health` and
`controller.exclusions.stragglers` decide; this module only writes their decisions to the store.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from cerebro.contract.events import ModelRetried
from cerebro.contract.records import WorkerStatus
from cerebro.contract.rest import api
from cerebro.contract.stored.health import (
    CONTROLLER,
    CheckRequest,
    HealthAnswer,
    IncidentRequest,
    PaceRequest,
    QuarantineWorkerRequest,
    ReleaseRequest,
    WorkerHealth,
)
from cerebro.errors import ConflictError, NotFoundError
from cerebro.state import ExperimentState, Run
from controller.exclusions import stragglers
from controller.exclusions.health import (
    Action,
    Checked,
    Evidence,
    Quarantined,
    Released,
    Spared,
    act,
    given_up_at,
    retried,
)

log = logging.getLogger(__name__)


class MachineStore(Protocol):
    """The calls to the store, as in `cerebro.runtime.kvs.client.KvsClient`."""

    def quarantine_worker(self, worker: str, request: QuarantineWorkerRequest) -> WorkerHealth:
        """Give a worker no more tasks."""
        ...

    def release_worker(self, worker: str, request: ReleaseRequest) -> WorkerHealth:
        """Give a worker tasks again."""
        ...

    def request_check(self, worker: str, request: CheckRequest) -> WorkerHealth:
        """Have a worker check its machine."""
        ...

    def report_pace(self, worker: str, request: PaceRequest) -> None:
        """Record a worker's pace relative to the others."""
        ...

    def report_incident(self, request: IncidentRequest) -> None:
        """Record an incident for people."""
        ...

    def decide(self, experiment: str, request: api.DecideRequest) -> api.DecideAnswer:
        """Write into an experiment's log."""
        ...


class Machines:
    """Acts on workers' health. Owned by the loop; not thread-safe."""

    def __init__(self, store: MachineStore) -> None:
        self._store = store
        self._reported_reasons: dict[str, str] = {}
        """Worker -> why it is broken by the rule but not quarantined."""
        self._health: HealthAnswer | None = None
        """The last answer after which failed models were looked up for a retry."""
        self._compared_at = -math.inf

    def reconcile(
        self,
        term: int,
        statuses: Sequence[WorkerStatus],
        health: HealthAnswer,
        *,
        evidence: Evidence,
        open_runs: Iterable[tuple[ExperimentState, Run]],
        now: float,
    ) -> bool:
        """Act on the workers' health; return True if anything was done.

        Args:
            evidence: results of attempts by worker.
            open_runs: runs with models that may be retried.
            now: seconds since the epoch, as in events.

        Raises:
            ConflictError: another controller leads.
            RetryableError: the store is unavailable.
        """
        has_acted = False
        for action in act(statuses, health, evidence, now):
            try:
                has_acted |= self._do(action, term)
            except NotFoundError:
                log.info("%s is not registered any more", action.worker)
            except ConflictError as error:
                self._report_refusal(action, str(error), term)
        if health is not self._health:
            self._health = health
            has_acted |= self._retry_models(term, health, open_runs)
        return has_acted

    def label(
        self,
        term: int,
        statuses: Sequence[WorkerStatus],
        health: HealthAnswer,
        paces: Callable[[], Iterable[stragglers.Learned]],
        now: float,
    ) -> None:
        """Label slow workers, at most every 10 seconds.

        Args:
            paces: returns the paces of workers in open runs; called only when due.
            now: seconds.

        Raises:
            ConflictError: another controller leads.
            RetryableError: the store is unavailable.
        """
        if now - self._compared_at < stragglers.EVERY_S:
            return
        self._compared_at = now
        for each in stragglers.label(paces(), statuses, health):
            request = PaceRequest(
                is_slow=each.is_slow, factor=each.factor, sub_epochs=each.sub_epochs, term=term
            )
            try:
                self._store.report_pace(each.worker, request)
            except NotFoundError:
                log.info("%s is not registered any more", each.worker)
            else:
                factor = f"{each.factor:.1f} x the others" if each.factor is not None else "no others"
                log.info("%s is %s: %s", each.worker, "slow" if each.is_slow else "not slow", factor)

    def _do(self, action: Action, term: int) -> bool:
        worker = action.worker
        match action:
            case Quarantined():
                request = QuarantineWorkerRequest(reason=action.reason, by=CONTROLLER, term=term)
                self._store.quarantine_worker(worker, request)
                log.warning("quarantined %s: %s", worker, action.reason, extra={"worker": worker})
            case Released():
                self._store.release_worker(worker, ReleaseRequest(by=CONTROLLER, term=term))
                log.info("released %s, which runs on another machine", worker, extra={"worker": worker})
            case Checked():
                self._store.request_check(
                    worker, CheckRequest(reason=action.reason, by=CONTROLLER, term=term)
                )
                log.info("%s is to check its machine: %s", worker, action.reason, extra={"worker": worker})
            case Spared():
                if self._reported_reasons.get(worker) == action.why:
                    return False
                self._reported_reasons[worker] = action.why
                self._store.report_incident(
                    IncidentRequest(
                        worker=worker,
                        what="not quarantined",
                        evidence=action.reason,
                        action=action.why,
                        term=term,
                    )
                )
                log.warning("%s is not quarantined: %s", worker, action.why, extra={"worker": worker})
                return False
        return True

    def _report_refusal(self, action: Action, why: str, term: int) -> None:
        """Report a refused action: the store has newer data, or another controller leads.

        The incident distinguishes the two: the store refuses it only if another controller leads.
        """
        log.info("%s: %s was refused: %s", action.worker, type(action).__name__, why)
        self._store.report_incident(
            IncidentRequest(
                worker=action.worker,
                what=f"not {type(action).__name__.lower()}",
                evidence=why,
                action="it is looked at again",
                term=term,
            )
        )

    def _retry_models(
        self, term: int, health: HealthAnswer, open_runs: Iterable[tuple[ExperimentState, Run]]
    ) -> bool:
        """Retry models that failed because of a worker that is now quarantined."""
        by_rule = {
            name for name in health.quarantined() if (q := health.of(name).quarantine) and q.by == CONTROLLER
        }
        has_tried = False
        for state, run in open_runs if by_rule else ():
            models = given_up_at(by_rule, run, retried(state, run.id))
            events = [ModelRetried(run=run.id, model=model, by=CONTROLLER) for model in models]
            if not events:
                continue
            steps = tuple(api.Note(event=event) for event in events)
            self._store.decide(state.name, api.DecideRequest(term=term, after=state.seq, steps=steps))
            log.info("%s of %s/%s: tried again elsewhere", ", ".join(models), state.name, run.id)
            has_tried = True
        return has_tried
