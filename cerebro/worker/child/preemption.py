"""The agent's request that the running task leaves.

`Context` records a `Preempt` message here and raises `PreemptedError` at the next batch. Nothing here interrupts user
code: after the grace period, the agent kills the process.
"""

from __future__ import annotations

import time

from cerebro.worker.protocol.messages import Preempt


class Preemption:
    """Preemption of the current task, if the agent has requested it.

    Attributes:
        reason: the agent's reason; "" without a preemption.
        has_raised: True if the task was left between batches; then any result of user code is ignored.
    """

    def __init__(self) -> None:
        self.reason, self.has_raised = "", False
        self._deadline = 0.0

    def begin(self) -> None:
        """Start a new task, which is not preempted."""
        self.reason, self.has_raised = "", False

    def request(self, message: Preempt) -> None:
        """Record the agent's request."""
        self.reason, self._deadline = message.reason, time.monotonic() + message.grace_s

    @property
    def is_requested(self) -> bool:
        """True if the agent has preempted the task."""
        return bool(self.reason)

    @property
    def remaining_s(self) -> float | None:
        """Seconds until a preempted task is killed; `None` without a preemption."""
        return max(0.0, self._deadline - time.monotonic()) if self.is_requested else None
