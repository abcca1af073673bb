"""A handler that logs requests to free memory. Its tasks do nothing."""

from __future__ import annotations

import os

from cerebro.contract.tasks.bodies import TaskBody
from cerebro.contract.tasks.results import TaskResult
from cerebro.worker.child.context import BaseHandler


class Handler(BaseHandler):
    """See `BaseHandler`."""

    def free_memory(self) -> None:
        """Log the request."""
        (self._volumes.logs.parent / "rested").write_text(str(os.getpid()))

    def handle(self, body: TaskBody, attempt: int) -> TaskResult:
        """Do nothing."""
        return TaskResult()
