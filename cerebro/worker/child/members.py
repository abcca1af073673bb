"""The members of the running fused group, for its handler.

The handler trains all members together and reports each one's end here. The agent may ask single members to leave at
the next batch. `Context` passes the agent's requests on; the task loop sends the ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from cerebro.contract.tasks.results import TaskResult
from cerebro.worker.protocol.messages import Preempt

OnEnd = Callable[[int, TaskResult | BaseException], None]
"""Sends the result or the error of a member, by its number."""


class Members:
    """Members of a fused group that have not ended, by their number. Only for the child's main thread."""

    def __init__(self) -> None:
        self._open: list[int] = []
        self._deadlines: dict[int, float] = {}
        self._on_end: OnEnd = lambda number, answer: None

    def begin(self, size: int = 0, on_end: OnEnd = lambda number, answer: None) -> None:
        """Start a new task with `size` members; 0 for a task that is no group."""
        self._open, self._deadlines, self._on_end = [*range(size)], {}, on_end

    @property
    def open(self) -> list[int]:
        """Members that have not ended, ascending."""
        return [*self._open]

    def request_exit(self, message: Preempt) -> None:
        """Record that the agent asks one member to leave."""
        if message.member in self._open:
            self._deadlines[message.member] = time.monotonic() + message.grace_s

    def exits(self) -> dict[int, float]:
        """Return the open members that must leave at this batch, with the seconds for a savepoint; 0 for none.

        Call it after `Context.listen`, then `fail` each with a `PreemptedError`.
        """
        now = time.monotonic()
        return {
            number: max(0.0, deadline - now)
            for number, deadline in sorted(self._deadlines.items())
            if number in self._open
        }

    def finish(self, number: int, result: TaskResult) -> None:
        """Report the result of a member, after its checkpoint is complete."""
        self._end(number, result)

    def fail(self, number: int, error: BaseException) -> None:
        """Report the failure of a member; `PreemptedError` if it leaves because the agent asked."""
        self._end(number, error)

    def _end(self, number: int, answer: TaskResult | BaseException) -> None:
        self._open.remove(number)
        self._on_end(number, answer)
