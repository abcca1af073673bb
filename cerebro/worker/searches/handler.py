"""The handler of `search` tasks. Runs in a worker's child process.

The child's task loop calls `handle` with one request: for hyperparameters from a sampler (`SuggestionsRequest`), or
for the next actions of a user's search procedure. The request has all earlier results, so it reads no volume and writes
nothing. One process answers all requests of a user code, so that the samplers stay imported, and keeps nothing else.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from cerebro.contract.search_tasks import SearchAnswer, SuggestionsRequest
from cerebro.contract.tasks.bodies import SearchTask, TaskBody
from cerebro.contract.tasks.results import TaskResult, Timings
from cerebro.errors import SpecError
from cerebro.search.suggestions import values_for
from cerebro.search.user_procedure import answer
from cerebro.worker.child.context import BaseHandler, Context

_NICE = 15
"""Niceness: concurrent sub-epochs have priority."""


class Handler(BaseHandler):
    """Answers the requests of searches, at low processor priority."""

    keeps_process = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        with suppress(OSError):
            os.nice(_NICE)

    def handle(self, body: TaskBody, attempt: int) -> TaskResult:
        """Answer one request."""
        if not isinstance(body, SearchTask):
            raise SpecError(f"cerebro.worker.searches does no task of kind {body.kind}")
        start_s, began = self._context.start_up.finish(), time.monotonic()
        request = body.request
        if isinstance(request, SuggestionsRequest):
            values = values_for(request, self._context.user_code.decode)
            found = SearchAnswer(values=tuple(values))
        else:
            found = SearchAnswer(actions=answer(request, lambda: self._context.user_code.decode(body.code)))
        timings = Timings(start_s=start_s, compute_s=time.monotonic() - began)
        return TaskResult(answer=found, timings=timings)
