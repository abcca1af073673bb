"""The helper as a child process of the controller."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

from cerebro.tether import tethered


class ChildHelper:
    """See `controller.advisor.advisor.Helper`. The process is started by the first question and ended by `rest`."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[str] | None = None
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._is_busy = False

    def ask(self, message: Mapping[str, Any]) -> None:
        """Put a question. A helper that still works on another one is ended: an exact solver cannot be interrupted."""
        if self._is_busy:
            self.rest()
        if self._child is None or self._child.poll() is not None:
            self._start()
        self._is_busy = True
        try:
            assert self._child is not None
            assert self._child.stdin is not None
            self._child.stdin.write(json.dumps(message) + "\n")
            self._child.stdin.flush()
        except OSError as error:
            self._answers.put({"error": f"the planning process ended: {error}"})

    def answer(self) -> dict[str, Any] | None:
        """The answer, once it is there."""
        try:
            return self.wait(0.0)
        except queue.Empty:
            return None

    def wait(self, timeout_s: float) -> dict[str, Any]:
        """The answer.

        Raises:
            queue.Empty: it did not come in time.
        """
        found = self._answers.get(block=timeout_s > 0, timeout=timeout_s)
        self._is_busy = False
        return found

    def rest(self) -> None:
        """End the process."""
        child, self._child, self._is_busy = self._child, None, False
        self._answers = queue.SimpleQueue()
        if child is not None:
            child.kill()
            child.wait()
            assert child.stdin is not None
            with contextlib.suppress(OSError):  # what it had not read yet
                child.stdin.close()

    def _start(self) -> None:
        self.rest()
        self._child = subprocess.Popen(
            tethered([sys.executable, "-P", "-m", "controller.advisor.child"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        # The queue is passed on: a thread of an earlier child must not speak for this one.
        arguments = (self._child, self._answers)
        threading.Thread(target=_read, args=arguments, name="advisor", daemon=True).start()


def _read(child: subprocess.Popen[str], answers: queue.SimpleQueue[dict[str, Any]]) -> None:
    assert child.stdout is not None
    with child.stdout as lines:
        for line in lines:
            answers.put(json.loads(line))
    answers.put({"error": "the planning process ended"})
