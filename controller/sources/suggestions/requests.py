"""Requests to the suggestion process, and the events of its answers."""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

from cerebro.contract.events import RunPaused, ValuesSuggested
from cerebro.contract.rest import api
from cerebro.state import Run, RunState
from controller.decisions.core import Core
from controller.decisions.decide import Step
from controller.planning import BackgroundProcess, SpawnedProcess

_SOON_S = 0.02
"""Seconds between two checks for an answer."""
_IDLE_S = 60.0
"""The process ends after this many seconds without a request."""


class _PendingRequest(NamedTuple):
    """The run and first number of a pending request."""

    experiment: str
    run: str
    first: int


class SuggestionRequests:
    """Requests suggestions for one run at a time. Owned by the loop; not thread-safe.

    Args:
        process: computes the suggestions; a process by default.
    """

    def __init__(self, process: BackgroundProcess | None = None) -> None:
        self._process = process or SpawnedProcess("controller.sources.suggestions.child")
        self._pending: _PendingRequest | None = None
        self._answers: dict[_PendingRequest, dict[str, Any]] = {}
        """Answers not yet used."""
        self._used = -math.inf

    def steps(self, core: Core, run: Run) -> list[Step]:
        """Return the event for available suggestions; otherwise request them if needed."""
        search = core.search_of(run)
        is_needed = search is not None and not search.is_sampled_by_workers and run.state is RunState.RUNNING
        sampler_request = search.sampler_request(run) if search is not None and is_needed else None
        if sampler_request is None:
            return []
        request = _PendingRequest(core.state.name, run.id, sampler_request.numbers[0])
        self._collect()
        answer = self._answers.pop(request, None)
        if answer is not None and "values" in answer:
            suggested = ValuesSuggested(run=run.id, first=request.first, values=tuple(answer["values"]))
            return [api.Note(event=suggested)]
        if answer is not None:
            reason = f"the sampler suggested no values: {answer.get('error', answer)}"
            return [api.Note(event=RunPaused(run=run.id, reason=reason))]
        if self._pending is None:
            self._process.send(sampler_request.model_dump(mode="json"))
            self._pending, self._used = request, time.monotonic()
        return []

    def _collect(self) -> bool:
        """Store the pending answer, if it has arrived, even if the search has ended; return True if so."""
        answer = self._process.answer() if self._pending is not None else None
        if self._pending is None or answer is None:
            return False
        is_of_run = (self._pending.experiment, self._pending.run)
        self._answers = {
            of: stored_answer
            for of, stored_answer in self._answers.items()
            if (of.experiment, of.run) != is_of_run
        }
        self._answers[self._pending] = answer
        self._pending = None
        return True

    def wake_s(self) -> float:
        """Return the seconds until suggestions may be available."""
        if self._collect():
            return 0.0
        if self._pending is not None:
            return _SOON_S
        if self._used > -math.inf and time.monotonic() - self._used > _IDLE_S:
            self._process.stop()
            self._used = -math.inf
        return math.inf
