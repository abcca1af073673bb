"""Time and worker of a sub-epoch's re-execution for verification. Pure.

A re-execution normally takes an idle device that no sub-epoch wants. Once overdue it is placed before new sub-epochs:
a busy cluster would otherwise find a faulty worker only at the end. Nothing is queued behind a running one. The cost is
at most the verified share of the sub-epochs. A worker is eligible only if its memory exceeds the peaks of the original,
so that a re-execution does not run out of memory.

When training is complete, due re-executions start on free devices and the run waits for them. If two results differ, it
also waits for a third while an eligible worker is cordoned for a machine check. Verifications without a free worker are
dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from cerebro.contract.records import ExperimentRecord
from cerebro.state import ExperimentState, Run, RunState, Task, TaskKey, Worker
from cerebro.state.tasks.memory_need import has_room
from cerebro.state.tasks.verifications import Verification, VerificationState, is_exact, may_reexecute
from controller.decisions import tasks
from controller.exclusions.memory_needs import Views, limit_of
from controller.scaling.cluster_snapshot import WorkerView
from controller.sources.task_source import Offer, Proposal

if TYPE_CHECKING:
    from controller.decisions.assignment_draft import AssignmentDraft


_OVERDUE_COMMITS_PER_MODEL = 2
"""A re-execution is overdue after this many commits per model of the run ..."""
_MIN_OVERDUE_COMMITS = 8
"""... and at least this many in all."""


class Reexecutions:
    """Proposes re-executions, at most one per worker.

    Args:
        is_overdue: True to propose overdue ones only.
    """

    kinds = frozenset({"verify"})
    reason = "the comparison is no longer needed"
    """Reason of a revocation."""

    def __init__(
        self, record: ExperimentRecord, state: ExperimentState, run: Run, *, is_overdue: bool = False
    ) -> None:
        self._record, self._state, self._run, self._is_overdue = record, state, run, is_overdue

    def propose(self, draft: AssignmentDraft, offer: Offer) -> Iterator[Proposal]:
        """Yield re-executions for the offered devices."""
        run = self._run
        if run.kind != "fit" or run.state is not RunState.RUNNING or not run.fit_request.verify:
            return
        known = {str(task.key) for task in run.tasks.open.values()} | {step.task for step in draft.steps}
        for verification in run.verifications.due():
            if str(verification.next_key) in known or (
                self._is_overdue and not is_overdue(run, verification)
            ):
                continue
            worker = _worker_for(run, verification, draft, offer)
            if worker is not None:
                body = tasks.verification(self._record, self._state, run, verification, worker)
                device = draft.slots.free(worker.name, offer.depth, offer.devices(worker.name))
                yield Proposal(verification.next_key, worker.name, (device,), body=body)

    def is_still_needed(self, task: Task) -> bool:
        """False if the sub-epoch was retrained, or if the code is not repeatable."""
        verifications = self._run.verifications
        return not (verifications.of(task.key) is None or verifications.is_hopeless)


def is_overdue(run: Run, verification: Verification) -> bool:
    """True if the re-execution is overdue and precedes sub-epochs."""
    return run.counts.sub_epochs - verification.selected_after >= max(
        _MIN_OVERDUE_COMMITS, _OVERDUE_COMMITS_PER_MODEL * len(run.models)
    )


def is_awaited(state: ExperimentState, run: Run, cordoned: Collection[str], views: Views) -> bool:
    """True if a third result must wait for a worker that is cordoned for a check of at most a minute."""
    return any(
        _can_give_result(state.workers[name], run, verification, views)
        for verification in run.verifications.due()
        if verification.state is VerificationState.DIFFERS
        for name in cordoned
        if name in state.workers
    )


def _worker_for(
    run: Run,
    verification: Verification,
    draft: AssignmentDraft,
    offer: Offer,
) -> Worker | None:
    """Choose a worker: without a failure of the task, then with bitwise equal results, then by name.

    On another kind of processor only metrics can be compared.
    """
    failed_at = run.task(verification.next_key).failed_at
    able = [
        worker
        for worker in draft.alive
        if _can_give_result(worker, run, verification, draft.views)
        and not draft.exclusions.stops_all(worker.name)
        and (offer.offered_devices is None or worker.name in offer.offered_devices)
        and not _is_verifying(worker, draft)
        and draft.slots.num_free(worker.name, offer.depth, offer.devices(worker.name))
    ]
    return min(able, key=lambda w: (w.name in failed_at, not is_exact(verification, w), w.name), default=None)


def _can_give_result(worker: Worker, run: Run, verification: Verification, views: Views) -> bool:
    """True if a worker can give the next result, now or later."""
    assert run.plan is not None
    return (
        may_reexecute(worker, run.plan.dataset, verification.completed.partition)
        and worker.name not in verification.seen_by
        # After an exact first result, the second must be exact too.
        and (is_exact(verification, worker) or not any(r.is_exact for r in verification.reexecutions[:1]))
        and _has_room(verification, views.get(worker.name))
    )


def _has_room(verification: Verification, view: WorkerView | None) -> bool:
    """True if a worker has the memory that the sub-epoch took. An unknown limit counts as enough."""
    if view is None:
        return True
    limits = (
        (limit_of(view, "host"), verification.completed.peak_bytes),
        (limit_of(view, "device"), verification.completed.peak_gpu_bytes),
    )
    return all(limit is None or has_room(limit, peak) for limit, peak in limits)


def _is_verifying(worker: Worker, draft: AssignmentDraft) -> bool:
    return any(
        TaskKey.parse(key).kind == "verify" for key in (*worker.open_tasks, *draft.given_to(worker.name))
    )
