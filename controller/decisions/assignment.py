"""Assign ready tasks to devices: the assignments of one decision. Pure.

`assign` works in three passes. It gives each idle device a task. It revokes a queued sub-epoch if the policy
would run it on an idle device (`controller.decisions.queue_corrections`). It queues the next sub-epoch on devices
that will finish soon, so its model loads during the current one.

Sources propose tasks in order of priority. `controller.decisions.sub_epoch_choice` chooses sub-epochs and their
workers, `controller.sources.training` the devices.
"""

from __future__ import annotations

from collections.abc import Callable

from cerebro.contract.records import ExperimentRecord
from cerebro.contract.rest import api
from cerebro.scheduling.remaining_work import NEVER
from cerebro.state import ExperimentState, Run
from controller.decisions.assignment_draft import AssignmentDraft, DispatchDraft
from controller.decisions.device_ends import due_devices
from controller.decisions.fit_dispatch import FitDispatch
from controller.decisions.preemption import for_better_model, for_other_run
from controller.decisions.queue_corrections import QueueCorrections
from controller.decisions.sub_epoch_choice import Choose, SubEpochChoice
from controller.exclusions.model_exclusions import feasible_workers
from controller.scaling.cluster_snapshot import ClusterSnapshot
from controller.sources.etl_and_evaluation import EtlAndEvaluation
from controller.sources.gangs import Gangs
from controller.sources.measurement import Measurements
from controller.sources.replication import Replicas
from controller.sources.search import Searching
from controller.sources.search_tasks import SearchRequests
from controller.sources.task_source import Offer
from controller.sources.training import Training
from controller.sources.verification import Reexecutions


def assign(
    record: ExperimentRecord,
    state: ExperimentState,
    run: Run,
    fit: FitDispatch | None,
    snapshot: ClusterSnapshot,
    *,
    search: Searching | None = None,
) -> list[api.Assign | api.Revoke | api.Preempt]:
    """Return assignments and revocations of queued sub-epochs for one run.

    Also assigns verifications and requests preemptions. `fit` may be the dispatch state of another run of the
    experiment; it ends unchanged. `search` is the run's search, if it has one.
    """
    draft = AssignmentDraft(record, state, run, fit, snapshot)
    if fit is not None and fit.run != run.id:
        fit = None
    draft.accept(Replicas(state, run, fit))
    draft.accept(SearchRequests(record, run, search), Offer(snapshot.depth))
    if run.kind != "fit" or fit is None:
        for depth in range(1, snapshot.depth + 1):
            draft.accept(EtlAndEvaluation(state, run), Offer(depth))
        return [*draft.steps]
    draft.accept(Measurements(record, run, fit))
    assignment = _FitAssignment(record, state, draft, fit, snapshot)
    try:
        return assignment.decide()
    finally:
        assignment.undo()


class _FitAssignment:
    """Fills the device slots of an open fit run, tentatively on the dispatch state until `undo`."""

    def __init__(
        self,
        record: ExperimentRecord,
        state: ExperimentState,
        draft: AssignmentDraft,
        fit: FitDispatch,
        snapshot: ClusterSnapshot,
    ) -> None:
        self._draft, self._fit, self._now, self._depth = draft, fit, snapshot.now, snapshot.depth
        self._evaluation = EtlAndEvaluation(state, draft.run)
        self._verifications = Reexecutions(record, state, draft.run)
        self._overdue = Reexecutions(record, state, draft.run, is_overdue=True)
        self._training_workers = [w for w in draft.alive if w.trains]
        self._dispatch_draft = DispatchDraft(fit)
        self._choice = SubEpochChoice(fit, self._dispatch_draft, draft.rng, snapshot.now)
        self._corrections = QueueCorrections(draft, fit, self._choice, self._depth, self._now)
        self._exclude_models()
        # Only workers with room for another task: few of a thousand.
        self._soon = {
            w.name: due_devices(fit, w, self._choice.policy(), self._now)
            for w in self._training_workers
            if draft.slots.num_free(w.name, self._depth)
        }

    def decide(self) -> list[api.Assign | api.Revoke | api.Preempt]:
        """Return the steps of `assign` for an open fit run."""
        draft, remaining = self._draft, self._fit.dispatch_state.work.worker_left
        if not self._fit.preempts:
            draft.accept(self._training(lambda: self._choice.interrupted))
        # Validation delays training, so it goes to the worker with the least remaining training.
        calmest_first = sorted(
            draft.alive, key=lambda w: remaining[self._fit.names.worker(w.name)] if w.trains else 0.0
        )
        sources = (
            self._evaluation,
            self._overdue,
            Gangs(self._fit, self._dispatch_draft),
            self._training(self._choice.in_turn),
        )
        for source in sources:
            draft.accept(source, Offer(order=calmest_first))
        revoked = self._corrections.for_idle_device()
        if revoked:
            return [*draft.steps, *revoked]
        if self._depth > 1:
            soon = [w for w in calmest_first if w.name in self._soon]
            for source in sources:
                draft.accept(source, Offer(self._depth, self._soon, soon))
            revoked = self._corrections.for_priority()
            if revoked:
                return [*draft.steps, *revoked]
        draft.accept(self._verifications)
        return [*draft.steps] or self._preempted()

    def _training(self, chooser: Callable[[], Choose]) -> Training:
        return Training(self._draft, self._fit, self._dispatch_draft, self._depth, chooser)

    def _preempted(self) -> list[api.Assign | api.Revoke | api.Preempt]:
        if self._draft.snapshot.preempted is not None:
            return [*for_other_run(self._draft.run, self._draft.snapshot.preempted, self._now)]
        workers = [w for w in self._training_workers if not self._draft.exclusions.stops_all(w.name)]
        is_alone = not self._draft.exclusions.slots
        return [*for_better_model(self._draft.run, self._fit, workers, self._now, is_alone=is_alone)]

    def undo(self) -> None:
        """Restore the dispatch state. The log will report the steps that took effect."""
        self._dispatch_draft.undo()

    def _exclude_models(self) -> None:
        dispatch_state = self._fit.dispatch_state
        bound = {model for model, _, _ in self._fit.retries.interrupted}
        for model in sorted(
            bound | self._fit.retries.out_of_memory.keys() | self._fit.retries.failed_at.keys()
        ):
            if model in dispatch_state.running:
                continue
            able, times = feasible_workers(self._fit, model, self._now), dispatch_state.work.time[model]
            if model in self._fit.retries.out_of_memory:
                # It should not wait for a faster worker, which it might never have to itself.
                slots, names = self._draft.slots, self._fit.names.workers
                able = {w for w in able if not slots.load(names[w])} or able
            for worker, held in enumerate(dispatch_state.holders.held):
                if held & dispatch_state.open[model] and worker not in able and times[worker] != NEVER:
                    self._dispatch_draft.exclude(model, worker)
