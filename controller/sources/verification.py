"""Re-executions of sub-epochs for verification: their time and worker. Pure.

A re-execution takes an otherwise idle device. An overdue one precedes the next sub-epochs, because a busy
cluster would otherwise find a faulty worker only at the end. They are a small share of the sub-epochs and
cost no more than that share. No sub-epoch is queued behind one. A worker needs as much memory as the
sub-epoch took, so that verification harms nothing else.

A run's end waits for running re-executions, and for a third result while the workers able to give it check
their machines. The others are dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from cerebro.contract.records import ExperimentRecord
from cerebro.state import ExperimentState, Run, RunState, Task, TaskKey, Worker
from cerebro.state.tasks.memory_need import has_room
from cerebro.state.tasks.verifications import Audit, AuditState, is_exact, may_redo
from controller.decisions import tasks
from controller.exclusions.memory_needs import Views, limit_of
from controller.scaling.cluster_snapshot import WorkerView
from controller.sources.task_source import Offer, Proposal

if TYPE_CHECKING:
    from controller.decisions.assignment_draft import AssignmentDraft


PATIENCE = 2
"""Commits per model of the run while a re-execution waits for an idle device."""
LEAST = 8
"""Minimum number of these commits."""


class Verifications:
    """Proposes re-executions, at most one per worker.

    Args:
        is_overdue: True to propose overdue ones only.
    """

    kinds = frozenset({"audit"})
    reason = "nothing is left to be compared"

    def __init__(
        self, record: ExperimentRecord, state: ExperimentState, run: Run, *, is_overdue: bool = False
    ) -> None:
        self._record, self._state, self._run, self._is_overdue = record, state, run, is_overdue

    def propose(self, view: AssignmentDraft, offer: Offer) -> Iterator[Proposal]:
        """Yield re-executions for the offered devices."""
        run = self._run
        if run.kind != "fit" or run.state is not RunState.RUNNING or not run.fit_request.verify:
            return
        known = {str(task.key) for task in run.open.values()} | {step.task for step in view.steps}
        for audit in run.audits.due():
            if str(audit.next_key) in known or (self._is_overdue and not has_waited(run, audit)):
                continue
            worker = _worker_for(run, audit, view, offer)
            if worker is not None:
                body = tasks.audit(self._record, self._state, run, audit, worker)
                device = view.places.free(worker.name, offer.depth, offer.devices(worker.name))
                yield Proposal(audit.next_key, worker.name, (device,), body=body)

    def is_still_needed(self, task: Task) -> bool:
        """True unless the sub-epoch was retrained or the code is not repeatable."""
        audits = self._run.audits
        return not (audits.of(task.key) is None or audits.is_hopeless)


def has_waited(run: Run, audit: Audit) -> bool:
    """True if the re-execution is overdue and precedes sub-epochs."""
    return run.counts.sub_epochs - audit.drawn_after >= max(LEAST, PATIENCE * len(run.models))


def is_awaited(state: ExperimentState, run: Run, cordoned: Collection[str], views: Views) -> bool:
    """True if a third result waits for a worker's check, which takes at most a minute."""
    return any(
        _may(state.workers[name], run, audit, views)
        for audit in run.audits.due()
        if audit.state is AuditState.DIFFERS
        for name in cordoned
        if name in state.workers
    )


def _worker_for(
    run: Run,
    audit: Audit,
    draft: AssignmentDraft,
    offer: Offer,
) -> Worker | None:
    """Choose a worker, preferably one where the task has not failed and with bitwise equal results.

    Otherwise only metrics can be compared. The second re-execution is compared with the first in the same
    way.
    """
    failed_at = run.task(audit.next_key).failed_at
    able = [
        worker
        for worker in draft.alive
        if _may(worker, run, audit, draft.views)
        and not draft.exclusions.stops_all(worker.name)
        and (offer.offered_devices is None or worker.name in offer.offered_devices)
        and not _is_auditing(worker, draft)
        and draft.places.num_free(worker.name, offer.depth, offer.devices(worker.name))
    ]
    return min(able, key=lambda w: (w.name in failed_at, not is_exact(audit, w), w.name), default=None)


def _may(worker: Worker, run: Run, audit: Audit, views: Views) -> bool:
    """True if a worker can give the next result, now or later."""
    assert run.plan is not None
    return (
        may_redo(worker, run.plan.dataset, audit.visit.partition)
        and worker.name not in audit.seen_by
        and (is_exact(audit, worker) or not (audit.redos and audit.redos[0].is_exact))
        and _has_room(audit, views.get(worker.name))
    )


def _has_room(audit: Audit, view: WorkerView | None) -> bool:
    """True if a worker has the memory the sub-epoch took, or one is unknown."""
    if view is None:
        return True
    limits = (
        (limit_of(view, "host"), audit.visit.peak_bytes),
        (limit_of(view, "device"), audit.visit.peak_gpu_bytes),
    )
    return all(limit is None or has_room(limit, peak) for limit, peak in limits)


def _is_auditing(worker: Worker, draft: AssignmentDraft) -> bool:
    return any(
        TaskKey.parse(key).kind == "audit" for key in (*worker.open_tasks, *draft.given_to(worker.name))
    )
