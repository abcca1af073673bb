"""A child process that answers JSON requests, for the planner, the autoscaler and search suggestions.

Its owner calls from one thread; a daemon thread does the blocking I/O. One child per `SpawnedProcess`, started by the
first request, with background priority, killed by `stop` and at the latest when the controller dies.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cerebro.runtime.isolation.parent_death import BACKGROUND, with_parent_death_signal


@dataclass
class _Child:
    """A process and its thread: writing to a pipe may block, which the controller must not."""

    process: subprocess.Popen[str]
    questions: queue.SimpleQueue[Mapping[str, Any] | None] = field(default_factory=queue.SimpleQueue)
    answers: queue.SimpleQueue[dict[str, Any]] = field(default_factory=queue.SimpleQueue)

    def converse(self) -> None:
        """Pass requests and answers until either end closes."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(OSError), self.process.stdin as asking, self.process.stdout as answering:
            while (message := self.questions.get()) is not None:
                try:
                    asking.write(json.dumps(message) + "\n")
                    asking.flush()
                    self.answers.put(json.loads(answering.readline()))
                except (OSError, ValueError):
                    self.answers.put({"error": f"process {self.process.pid} that answers has ended"})


class SpawnedProcess:
    """A `controller.planning.planner_process.BackgroundProcess` in a separate process.

    A request starts it, `stop` ends it.

    Args:
        program: the module that answers each line with a line.
    """

    def __init__(self, program: str = "controller.planning.child") -> None:
        self._program = program
        self._child: _Child | None = None
        self._is_busy = False

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a request. A busy child is ended: an exact solver cannot be interrupted."""
        if self._is_busy or (self._child is not None and self._child.process.poll() is not None):
            self.stop()
        if self._child is None:
            self._child = _started(self._program)
        self._is_busy = True
        self._child.questions.put(message)

    def answer(self) -> dict[str, Any] | None:
        """Return the answer, or `None` until it arrives."""
        try:
            return self.wait(0.0)
        except queue.Empty:
            return None

    def wait(self, timeout_s: float) -> dict[str, Any]:
        """Return the answer.

        Raises:
            queue.Empty: no answer in time, or no request.
        """
        if self._child is None:
            raise queue.Empty
        found = self._child.answers.get(block=timeout_s > 0, timeout=timeout_s)
        self._is_busy = False
        return found

    def stop(self) -> None:
        """End the process."""
        child, self._child, self._is_busy = self._child, None, False
        if child is not None:
            child.questions.put(None)
            child.process.kill()
            child.process.wait()


def _started(program: str) -> _Child:
    command = with_parent_death_signal([sys.executable, "-P", "-m", program], BACKGROUND)
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    child = _Child(process)
    threading.Thread(target=child.converse, name=program, daemon=True).start()
    return child
