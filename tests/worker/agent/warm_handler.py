"""A handler that leaves a note when it is told to rest. Its tasks do nothing."""

from __future__ import annotations

import os

from cerebro.contract.tasks import TaskBody, TaskResult
from cerebro.worker.agent.context import Context


class Handler:
    """See `cerebro.worker.agent.context.Handler`."""

    keeps_process = False

    @staticmethod
    def before_fork() -> None:
        """Nothing to prepare."""

    def __init__(self, context: Context) -> None:
        self._notes = context.volumes.logs.parent

    def preload(self, body: TaskBody) -> None:
        """Nothing to load."""

    def rest(self) -> None:
        """Leaves a note."""
        (self._notes / "rested").write_text(str(os.getpid()))

    def handle(self, body: TaskBody, attempt: int) -> TaskResult:
        """Nothing to do."""
        return TaskResult()
