"""Requests of a search as tasks: their time, worker and body. Pure.

Such a task takes no device and shares the slot with ETL and inspections, so sub-epochs continue. It goes to
the worker with the fewest tasks in that slot, preferably one that does not train: in a pod, the ETL
container, which is idle during a fit.
"""

from __future__ import annotations

from cerebro.contract.records import ExperimentRecord
from cerebro.contract.search import OwnProcedure
from cerebro.contract.search_questions import SearchQuestion
from cerebro.contract.tasks import SearchTask
from cerebro.state import Run, TaskKey
from cerebro.state.workers import answers_searches
from controller.decisions.assignment_draft import AssignmentDraft
from controller.sources.search import Searching


def give(
    record: ExperimentRecord, run: Run, search: Searching, draft: AssignmentDraft, *, depth: int
) -> None:
    """Assign at most one procedure request and one sampler request.

    Args:
        depth: maximum number of open tasks of a slot, including the new one.
    """
    log = run.search
    assert log is not None
    if log.finish is not None or log.failures:
        return
    worker = _answering(draft, depth)
    if worker is None:
        return
    asked = {(task.key.question or "").partition("-")[0] for task in run.open.values()}
    if "orders" not in asked and (orders := search.orders_question(run)) is not None:
        _give(record, run, draft, worker, ask=f"orders-{len(log.answers)}", question=orders)
    is_wanted = search.is_drawn_by_workers and "draw" not in asked and log.drawn not in log.values
    worker = _answering(draft, depth)
    if worker is not None and is_wanted and (draw := search.question(run)) is not None:
        _give(record, run, draft, worker, ask=f"draw-{draw.numbers[0]}", question=draw)


def is_pointless(run: Run, key: TaskKey) -> bool:
    """True if an open request is no longer needed."""
    return key.kind == "search" and run.search is not None and run.search.finish is not None


def _answering(draft: AssignmentDraft, depth: int) -> str | None:
    """Return the worker for a request: the least loaded, preferably one that does not train."""
    able = [
        worker
        for worker in draft.alive
        if answers_searches(worker)
        and not draft.exclusions.stops_all(worker.name)
        and draft.places.beside(worker.name) < depth
    ]
    found = min(able, key=lambda w: (draft.places.beside(w.name), w.trains, w.name), default=None)
    return None if found is None else found.name


def _give(
    record: ExperimentRecord,
    run: Run,
    draft: AssignmentDraft,
    worker: str,
    *,
    ask: str,
    question: SearchQuestion,
) -> None:
    if run.plan is None:
        return
    key = TaskKey(run=run.id, kind="search", question=ask)
    own = question.request.procedure if question.kind == "orders" else None
    body = SearchTask(
        key=str(key),
        experiment=record.name,
        run=run.id,
        dataset=run.plan.dataset,
        code=own.code if isinstance(own, OwnProcedure) else "",
        archive=record.archive if own is not None else None,
        hang_timeout_s=run.fit_request.hang_timeout_s,
        question=question,
    )
    draft.give(worker, key, (), body=body)
