"""Sub-epochs that are done once more to compare them: when they are given, and to whom. Pure.

A redo takes a device that nobody else wants now. One that has waited for long goes before the next sub-epochs: a
cluster that is never idle would find out at the end what a worker has done since the beginning. As redos are a small
share of the sub-epochs, they cost no more than that share. No sub-epoch is queued behind one.

No worker is given one that has less memory than the sub-epoch was seen to take: nothing else is to suffer from an
audit.

The end of a run waits for redos that are under way, and for a third opinion while those who can give it check their
machines. What nobody has the time for then is not done.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from cerebro.contract.records import ExperimentRecord
from cerebro.state import ExperimentState, Run, RunState, TaskKey, Worker
from cerebro.state.audits import Audit, AuditState, is_exact, may_redo
from cerebro.state.memory import has_room
from controller.decisions import tasks
from controller.decisions.assignment_draft import AssignmentDraft
from controller.exclusions.memory_needs import Views, limit_of
from controller.scaling.cluster_snapshot import WorkerView


class Give(Protocol):
    """`give` of one decision."""

    def __call__(
        self, *, depth: int, among: Mapping[str, Sequence[int]] | None = None, is_overdue: bool
    ) -> None:
        """Give redos to devices."""
        ...


PATIENCE = 2
"""Sub-epochs that the run commits, for each of its models, while an audit waits for a device that is idle."""
LEAST = 8
"""At least so many."""


def give(
    record: ExperimentRecord,
    state: ExperimentState,
    run: Run,
    draft: AssignmentDraft,
    *,
    depth: int,
    among: Mapping[str, Sequence[int]] | None = None,
    is_overdue: bool,
) -> None:
    """Give redos to devices: of a worker one at a time.

    Args:
        depth: only to devices with fewer open tasks.
        among: worker -> its devices that may be given something; all if left out.
        is_overdue: only those that have waited for long.
    """
    if run.kind != "fit" or run.state is not RunState.RUNNING or not run.fit_request.verify:
        return
    asked = {str(task.key) for task in run.open.values()} | {step.task for step in draft.steps}
    for audit in run.audits.due():
        if str(audit.next_key) in asked or (is_overdue and not has_waited(run, audit)):
            continue
        worker = _worker_for(run, audit, draft, depth, among)
        if worker is not None:
            body = tasks.audit(record, state, run, audit, worker)
            device = draft.places.free(worker.name, depth, among[worker.name] if among is not None else None)
            draft.give(worker.name, audit.next_key, (device,), body=body)


def has_waited(run: Run, audit: Audit) -> bool:
    """Whether it has waited for so long that it goes before sub-epochs."""
    return run.counts.sub_epochs - audit.drawn_after >= max(LEAST, PATIENCE * len(run.models))


def is_pointless(run: Run, key: TaskKey) -> bool:
    """Whether nobody needs an open redo any more: its sub-epoch is done again, or the code is known not to repeat
    itself."""
    return key.kind == "audit" and (run.audits.of(key) is None or run.audits.is_hopeless)


def is_awaited(state: ExperimentState, run: Run, suspects: Collection[str], views: Views) -> bool:
    """Whether a third opinion waits for a worker that checks its machine, which takes a minute at most."""
    return any(
        _may(state.workers[name], run, audit, views)
        for audit in run.audits.due()
        if audit.state is AuditState.DIFFERS
        for name in suspects
        if name in state.workers
    )


def _worker_for(
    run: Run,
    audit: Audit,
    draft: AssignmentDraft,
    depth: int,
    among: Mapping[str, Sequence[int]] | None,
) -> Worker | None:
    """Rather one where the task has not failed, and that computes the same bits: else only metrics can be compared. A
    second redo is compared with the first as that was with the sub-epoch."""
    shunned = run.task(audit.next_key).shunned
    able = [
        worker
        for worker in draft.alive
        if _may(worker, run, audit, draft.views)
        and worker.name not in draft.barred
        and (among is None or worker.name in among)
        and not _is_auditing(worker, draft)
        and draft.places.num_free(worker.name, depth, among[worker.name] if among is not None else None)
    ]
    return min(able, key=lambda w: (w.name in shunned, not is_exact(audit, w), w.name), default=None)


def _may(worker: Worker, run: Run, audit: Audit, views: Views) -> bool:
    """Whether a worker can give the next opinion, now or later."""
    assert run.plan is not None
    return (
        may_redo(worker, run.plan.dataset, audit.visit.partition)
        and worker.name not in audit.seen_by
        and (is_exact(audit, worker) or not (audit.redos and audit.redos[0].is_exact))
        and _has_room(audit, views.get(worker.name))
    )


def _has_room(audit: Audit, view: WorkerView | None) -> bool:
    """Whether a worker has the memory that the sub-epoch was seen to take, as far as both are known."""
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
