"""Requests for stack traces of running tasks, and the answers.

Called by views of the REST API. A client's request goes into the worker's inbox; the agent takes the stack trace
and reports it. The store keeps the answer for five minutes, so that the client can fetch it.
"""

from __future__ import annotations

import json
from typing import Any

from cerebro import errors
from cerebro.contract.rest import api
from kvs_api.store import keys
from kvs_api.store.database import text, translated
from kvs_api.store.health import HealthStore

_TTL_S = 300
"""Seconds to keep a request, and then its answer."""


class StacksStore(HealthStore):
    """Requests for stack traces, and answers."""

    def request_stacks(self, experiment: str, request: api.StacksRequest) -> api.StacksRequested:
        """Request the stack trace of a task from its worker. Equal request numbers count once.

        Raises:
            NotFoundError: no attempt at the task was ever assigned.
            ConflictError: no attempt at the task runs.
        """
        key = keys.task(experiment, request.task)
        with translated():
            found: Any = self._redis.hmget(key, "worker", "attempt")
            worker, attempt = found
        if worker is None:
            raise errors.NotFoundError(f"{experiment} has no task {request.task} that was ever assigned")
        name, number = text(worker), int(attempt)
        entry = {
            "experiment": experiment,
            "task": request.task,
            "attempt": number,
            "stacks": request.question,
        }
        answer = self._run(
            {
                "call": "request_stacks",
                "key": key,
                "attempt": number,
                "worker": name,
                "worker_key": keys.worker(name),
                "inbox": keys.inbox(name),
                "question": keys.stacks(experiment, request.question),
                "kept_s": _TTL_S,
                "entry": json.dumps(entry),
            }
        )
        if "refused" in answer:
            raise errors.ConflictError(
                f"{request.task} of {experiment} does not run now: {answer['refused']}"
            )
        return api.StacksRequested(worker=name, attempt=number)

    def report_stacks(self, report: api.StacksReport) -> None:
        """Store a worker's answer, unless the request has expired."""
        with translated():
            # The leading `=` distinguishes an empty answer from no answer.
            self._redis.set(
                keys.stacks(report.experiment, report.question), f"={report.text}", xx=True, ex=_TTL_S
            )

    def stacks(self, experiment: str, question: str) -> api.StacksAnswer:
        """Return the answer to a request, if it has arrived.

        Raises:
            NotFoundError: the request is unknown or has expired.
        """
        with translated():
            content: Any = self._redis.get(keys.stacks(experiment, question))
        if content is None:
            raise errors.NotFoundError(
                f"{experiment}: the request is unknown or has expired; request the stack trace again"
            )
        return api.StacksAnswer(text=text(content)[1:] if content else None)
