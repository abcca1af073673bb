"""ETL, validation, test and prediction tasks: their workers and devices. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from cerebro.state import ExperimentState, Run, TaskKey, Worker
from controller.exclusions.memory_retries import calmest, reserved, runs_alone
from controller.sources.ready_tasks import made_elsewhere, may_run, ready
from controller.sources.task_source import Offer, Proposal

if TYPE_CHECKING:
    from controller.decisions.assignment_draft import AssignmentDraft


class EtlAndEvaluation:
    """Proposes the tasks of a run that need no idle model: ETL, validation, test and prediction."""

    def __init__(self, state: ExperimentState, run: Run) -> None:
        self._state, self._run = state, run

    def propose(self, view: AssignmentDraft, offer: Offer) -> Iterator[Proposal]:
        """Yield tasks for the offered slots, in the order of the offered workers."""
        if self._run.kind == "fit" and not self._run.counts.unvalidated:
            return
        order = view.alive if offer.order is None else offer.order
        free = [w for w in order if self._has_slot(view, w, offer)]
        if not free:
            return
        elsewhere = made_elsewhere(self._state, self._run)
        for key in (key for key in ready(self._run) if not view.has(key) and key not in elsewhere):
            worker = self._worker_for(view, key, free)
            if worker is None:
                continue
            yield Proposal(key, worker.name, self._devices(view, worker, offer))
            if self._run.task(key).exhausted:
                view.exclusions.add(runs_alone(worker.name, key))
            free = [w for w in free if self._has_slot(view, w, offer)]
            if not free:
                return

    def _worker_for(self, view: AssignmentDraft, key: TaskKey, free: Sequence[Worker]) -> Worker | None:
        """Return the first suitable worker. A task that must run alone reserves an idle or the least loaded one."""
        task = self._run.task(key)
        suitable = (
            w
            for w in (view.alive if task.exhausted else free)
            if view.exclusions.feasible(key, w.name) is None and may_run(self._state, self._run, w, key)
        )
        if not task.exhausted:
            if not task.failed_at:
                return next(suitable, None)
            return min(suitable, key=lambda w: w.name in task.failed_at, default=None)
        name = calmest(suitable, view.slots)
        if name and view.slots.load(name):
            view.exclusions.add(reserved(name, key))
            return None
        return next((w for w in free if w.name == name), None)

    def _has_slot(self, view: AssignmentDraft, worker: Worker, offer: Offer) -> bool:
        if view.exclusions.stops_all(worker.name):
            return False
        if self._run.kind == "etl":
            return view.slots.num_deviceless(worker.name) < offer.depth
        return view.slots.num_free(worker.name, offer.depth, offer.devices(worker.name)) > 0

    def _devices(self, view: AssignmentDraft, worker: Worker, offer: Offer) -> tuple[int, ...]:
        if self._run.kind == "etl":
            return ()
        return (view.slots.free(worker.name, offer.depth, offer.devices(worker.name)),)
