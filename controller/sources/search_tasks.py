"""Requests of a search as tasks: their time, worker and body. Pure.

Such a task takes no device and shares the slot with ETL and inspections, so sub-epochs continue. It goes to
the worker with the fewest tasks in that slot, preferably without training: in a pod, the ETL container, which
is idle during a fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cerebro.contract.records import ExperimentRecord
from cerebro.contract.search import OwnProcedure, OwnSampler
from cerebro.contract.search_tasks import SearchTaskRequest
from cerebro.contract.tasks.bodies import SearchTask
from cerebro.state import Run, RunState, Task, TaskKey
from cerebro.state.workers import answers_searches
from controller.sources.search import Searching
from controller.sources.task_source import Offer, Proposal

if TYPE_CHECKING:
    from controller.decisions.assignment_draft import AssignmentDraft


class SearchRequests:
    """Proposes at most one procedure request and one sampler request.

    Args:
        search: the run's search, if it has one.
    """

    kinds = frozenset({"search"})
    reason = "the search is over"

    def __init__(self, record: ExperimentRecord, run: Run, search: Searching | None = None) -> None:
        self._record, self._run, self._search = record, run, search

    def propose(self, view: AssignmentDraft, offer: Offer) -> Iterator[Proposal]:
        """Yield requests for the slots without a device."""
        log, search = self._run.search, self._search
        if log is None or search is None or self._run.state is not RunState.RUNNING:
            return
        if log.finish is not None or log.failures:
            return
        worker = _answering(view, offer.depth)
        if worker is None:
            return
        open_requests = {(task.key.request or "").partition("-")[0] for task in self._run.tasks.open.values()}
        if "actions" not in open_requests and (actions := search.procedure_request(self._run)) is not None:
            yield self._proposal(worker, f"actions-{len(log.answers)}", actions)
        is_wanted = (
            search.is_sampled_by_workers
            and "suggestions" not in open_requests
            and log.num_suggested not in log.values
        )
        worker = _answering(view, offer.depth)
        if worker is not None and is_wanted and (sampling := search.sampler_request(self._run)) is not None:
            yield self._proposal(worker, f"suggestions-{sampling.numbers[0]}", sampling)

    def is_still_needed(self, task: Task) -> bool:
        """True until the search ends."""
        search = self._run.search
        return search is None or search.finish is None

    def _proposal(self, worker: str, name: str, request: SearchTaskRequest) -> Proposal:
        run, record = self._run, self._record
        assert run.plan is not None
        key = TaskKey(run=run.id, kind="search", request=name)
        choice = request.search.procedure if request.kind == "actions" else request.sampler
        code = choice.code if isinstance(choice, OwnProcedure | OwnSampler) else ""
        body = SearchTask(
            key=str(key),
            experiment=record.name,
            run=run.id,
            dataset=run.plan.dataset,
            code=code,
            archive=record.archive if code else None,
            hang_timeout_s=run.fit_request.hang_timeout_s,
            request=request,
        )
        return Proposal(key, worker, body=body)


def _answering(draft: AssignmentDraft, depth: int) -> str | None:
    """Return the worker for a request: the least loaded, preferably without training."""
    able = [
        worker
        for worker in draft.alive
        if answers_searches(worker)
        and not draft.exclusions.stops_all(worker.name)
        and draft.slots.num_deviceless(worker.name) < depth
    ]
    found = min(able, key=lambda w: (draft.slots.num_deviceless(w.name), w.trains, w.name), default=None)
    return None if found is None else found.name
