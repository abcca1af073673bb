"""What the controller does about broken machines: checks that it asks for, workers that it quarantines, models that it
has tried again; and about slow ones, which it labels. Effects only; what is to be done is decided in
`controller.exclusions.health` and `controller.exclusions.stragglers`. Belongs to the loop.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from cerebro.contract import api
from cerebro.contract.events import ModelRetried
from cerebro.contract.health import (
    CONTROLLER,
    CheckRequest,
    HealthAnswer,
    IncidentRequest,
    PaceRequest,
    QuarantineWorkerRequest,
    ReleaseRequest,
    WorkerHealth,
)
from cerebro.contract.records import WorkerStatus
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
    """What is asked of the store, as `cerebro.runtime.kvs.KvsClient` does it."""

    def quarantine_worker(self, worker: str, request: QuarantineWorkerRequest) -> WorkerHealth:
        """Give a worker nothing more."""
        ...

    def release_worker(self, worker: str, request: ReleaseRequest) -> WorkerHealth:
        """Give a worker tasks again."""
        ...

    def ask_check(self, worker: str, request: CheckRequest) -> WorkerHealth:
        """Have a worker check its machine."""
        ...

    def tell_pace(self, worker: str, request: PaceRequest) -> None:
        """How long its sub-epochs take, against the others'."""
        ...

    def tell_incident(self, request: IncidentRequest) -> None:
        """Something that people are to know."""
        ...

    def decide(self, experiment: str, request: api.DecideRequest) -> api.DecideAnswer:
        """Write into an experiment's log."""
        ...


class Machines:
    """Belongs to the loop; not thread-safe."""

    def __init__(self, store: MachineStore) -> None:
        self._store = store
        self._told: dict[str, str] = {}
        """Worker -> why it was not quarantined although it is broken by the rule."""
        self._looked: HealthAnswer | None = None
        self._compared = -math.inf
        """When sub-epoch times of workers were compared last."""

    def tend(
        self,
        term: int,
        statuses: Sequence[WorkerStatus],
        health: HealthAnswer,
        *,
        seen: Evidence,
        open_runs: Iterable[tuple[ExperimentState, Run]],
        now: float,
    ) -> bool:
        """Do what is to be done; whether anything was.

        Args:
            seen: how attempts ended at workers.
            open_runs: those whose models may be tried again.
            now: as of `controller.exclusions.health.act`.

        Raises:
            ConflictError: another controller leads.
            RetryableError: the store is away.
        """
        has_acted = False
        for action in act(statuses, health, seen, now):
            try:
                has_acted |= self._do(action, term)
            except NotFoundError:
                log.info("%s is not registered any more", action.worker)
            except ConflictError as error:
                self._refused(action, str(error), term)
        if health is not self._looked:
            self._looked = health
            has_acted |= self._try_again(term, health, open_runs)
        return has_acted

    def label(
        self,
        term: int,
        statuses: Sequence[WorkerStatus],
        health: HealthAnswer,
        shown: Callable[[], Iterable[stragglers.Learned]],
        now: float,
    ) -> None:
        """Label workers whose sub-epochs take much longer than the others', now and then.

        Args:
            shown: what open runs have shown of workers; asked only when it is looked at.
            now: seconds.

        Raises:
            ConflictError: another controller leads.
            RetryableError: the store is away.
        """
        if now - self._compared < stragglers.EVERY_S:
            return
        self._compared = now
        for each in stragglers.label(shown(), statuses, health):
            request = PaceRequest(
                is_slow=each.is_slow, factor=each.factor, sub_epochs=each.sub_epochs, term=term
            )
            try:
                self._store.tell_pace(each.worker, request)
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
                self._store.ask_check(worker, CheckRequest(reason=action.reason, by=CONTROLLER, term=term))
                log.info("%s is to check its machine: %s", worker, action.reason, extra={"worker": worker})
            case Spared():
                if self._told.get(worker) == action.why:
                    return False
                self._told[worker] = action.why
                self._store.tell_incident(
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

    def _refused(self, action: Action, why: str, term: int) -> None:
        """The store knows more than was read, so it is looked at again; or another controller leads. That this finds
        out: an incident is refused for nothing else."""
        log.info("%s: %s was refused: %s", action.worker, type(action).__name__, why)
        self._store.tell_incident(
            IncidentRequest(
                worker=action.worker,
                what=f"not {type(action).__name__.lower()}",
                evidence=why,
                action="it is looked at again",
                term=term,
            )
        )

    def _try_again(
        self, term: int, health: HealthAnswer, open_runs: Iterable[tuple[ExperimentState, Run]]
    ) -> bool:
        """Models that were given up for what a worker did that is quarantined since: the fault was the machine's."""
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
