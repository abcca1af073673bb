"""Work on what users gave, in a process of its own: bounded in time and memory, and without the cluster's token.

A question goes in on standard input, JSON comes out on standard output. The process is killed when its time is over;
what it has said by then counts.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from dataclasses import dataclass

from cerebro.errors import ClusterError
from cerebro.tether import tethered

_SECRETS = frozenset({"CEREBRO_TOKEN"})


@dataclass(frozen=True, kw_only=True)
class Said:
    """What came of a child. `is_late`: it was killed when its time was over."""

    output: bytes
    code: int
    is_late: bool


class BusyError(ClusterError):
    """As many children run as may; the caller is to try again."""


class Children:
    """Runs ``python -m MODULE``, at most `at_once` at a time. Safe for several threads."""

    def __init__(self, module: str, *, at_once: int) -> None:
        self._module = module
        self._places = threading.BoundedSemaphore(at_once)

    def ask(self, question: bytes, *, timeout_s: float) -> Said:
        """The answer to a question.

        Raises:
            BusyError: too many run already.
        """
        if not self._places.acquire(blocking=False):
            raise BusyError("too many people ask for this at once: try again in a moment")
        try:
            return self._ask(question, timeout_s)
        finally:
            self._places.release()

    def _ask(self, question: bytes, timeout_s: float) -> Said:
        environment = {name: text for name, text in os.environ.items() if name not in _SECRETS}
        command = tethered([sys.executable, "-P", "-m", self._module])
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        ) as process:
            try:
                output, _ = process.communicate(question, timeout=timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                output, _ = process.communicate()
                return Said(output=output, code=process.returncode, is_late=True)
        return Said(output=output, code=process.returncode, is_late=False)


def bound(*, memory_bytes: int, cpu_s: int) -> None:
    """Called by the child first: the kernel refuses it more memory, and ends it when its processor time is over."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
