"""Ask a running task for its stacks, and wait for the answer.

`cerebro stacks` and the dispatcher's page call `stacks_of`. The request goes through the store to the worker, which
answers within about two seconds; the caller waits at most 15 s. The task continues.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Protocol

from cerebro.contract.rest import api
from cerebro.errors import ClusterError

ANSWER_S = 15.0
"""Seconds to wait. A worker answers within two seconds, unless it is very busy or gone."""
_LOOK_AGAIN_S = 0.2


class StacksStore(Protocol):
    """The calls of `KvsClient` that this module uses."""

    def request_stacks(self, experiment: str, request: api.StacksRequest) -> api.StacksRequested:
        """See `KvsClient.request_stacks`."""

    def stacks(self, experiment: str, question: str) -> str | None:
        """See `KvsClient.stacks`."""


def stacks_of(
    store: StacksStore,
    experiment: str,
    task: str,
    *,
    within_s: float = ANSWER_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[api.StacksRequested, str]:
    """Return a running attempt and the stacks of its threads, newest calls first. The task continues.

    Raises:
        NotFoundError: no attempt at the task was ever assigned.
        ConflictError: no attempt at the task runs now.
        ClusterError: the worker does not answer in time.
    """
    question = uuid.uuid4().hex
    requested = store.request_stacks(experiment, api.StacksRequest(task=task, question=question))
    deadline = clock() + within_s
    while (text := store.stacks(experiment, question)) is None:
        if clock() >= deadline:
            raise ClusterError(
                f"{requested.worker} has not said within {within_s:g} s where {task} is: it is very busy, or gone. See "
                f"`cerebro status`, and ask again"
            )
        sleep(_LOOK_AGAIN_S)
    return requested, text
