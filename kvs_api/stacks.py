"""The store's part in asking a worker where the process of a task is: the question goes into its inbox, the answer
waits for whoever asked."""

from __future__ import annotations

import json
from typing import Any

from cerebro import errors
from cerebro.contract import api
from kvs_api import keys
from kvs_api.database import text, translated
from kvs_api.health import HealthStore

_KEPT_S = 300
"""For which a question, and then its answer, is kept."""


class StacksStore(HealthStore):
    """Questions and answers."""

    def ask_stacks(self, experiment: str, request: api.StacksRequest) -> api.StacksAsked:
        """Put a question into the inbox of the worker that runs a task. Asked twice with the same number it is one.

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
                "call": "ask_stacks",
                "key": key,
                "attempt": number,
                "worker": name,
                "worker_key": keys.worker(name),
                "inbox": keys.inbox(name),
                "question": keys.stacks(experiment, request.question),
                "kept_s": _KEPT_S,
                "entry": json.dumps(entry),
            }
        )
        if "refused" in answer:
            raise errors.ConflictError(
                f"{request.task} of {experiment} does not run now: {answer['refused']}"
            )
        return api.StacksAsked(worker=name, attempt=number)

    def tell_stacks(self, report: api.StacksReport) -> None:
        """Keep a worker's answer, if somebody may still wait for it."""
        with translated():
            # With a mark before it: an empty text is an answer as well.
            self._redis.set(
                keys.stacks(report.experiment, report.question), f"={report.text}", xx=True, ex=_KEPT_S
            )

    def stacks(self, experiment: str, question: str) -> api.StacksAnswer:
        """The answer to a question, if it is there; `NotFoundError` if nobody asked it, or long ago."""
        with translated():
            content: Any = self._redis.get(keys.stacks(experiment, question))
        if content is None:
            raise errors.NotFoundError(
                f"{experiment}: nobody has asked this within the last minutes; ask anew"
            )
        return api.StacksAnswer(text=text(content)[1:] if content else None)
