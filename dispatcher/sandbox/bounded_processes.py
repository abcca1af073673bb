"""Work on what users gave, in a process of its own: bounded in time, memory and answer, without the cluster's token,
and without keys of object stores unless it is there to look into them.

A question goes in on standard input, JSON comes out on standard output. The process is killed when its time is over or
it says too much; what it has said by then counts.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from cerebro.errors import ClusterError
from cerebro.runtime.parent_death import with_parent_death_signal

MOST_BYTES = 16 << 20
"""Of an answer: five hundred lines that were found, or an image of 2 MiB for each split, fit."""

_SECRETS = ("CEREBRO_TOKEN",)
_OF_OBJECT_STORES = ("AWS_", "BOTO_", "S3_")
"""How variables begin that hold addresses and keys of object stores."""


@dataclass(frozen=True, kw_only=True)
class Said:
    """What came of a process. It was killed if `is_late`, when its time (elapsed, or the processor's) was over, and if
    `is_cut`, after `MOST_BYTES`."""

    output: bytes
    code: int
    is_late: bool = False
    is_cut: bool = False


class BusyError(ClusterError):
    """As many processes run as may; the caller is to try again."""


class BoundedProcesses:
    """Runs ``python -m MODULE``, which hears its question before it answers; at most `at_once` at a time. Safe for
    several threads.

    Only with `has_keys` it gets the variables of object stores.
    """

    def __init__(self, module: str, *, at_once: int, has_keys: bool = False) -> None:
        self._module = module
        self._withheld = _SECRETS if has_keys else (*_SECRETS, *_OF_OBJECT_STORES)
        self._slots = threading.BoundedSemaphore(at_once)

    def ask(self, question: bytes, *, timeout_s: float) -> Said:
        """The answer to a question.

        Raises:
            BusyError: too many run already.
        """
        if not self._slots.acquire(blocking=False):
            raise BusyError("too many people ask for this at once: try again in a moment")
        try:
            return self._ask(question, timeout_s)
        finally:
            self._slots.release()

    def _ask(self, question: bytes, timeout_s: float) -> Said:
        environment = {name: text for name, text in os.environ.items() if not name.startswith(self._withheld)}
        command = with_parent_death_signal([sys.executable, "-P", "-m", self._module])
        deadline = time.monotonic() + timeout_s
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            killing = threading.Timer(timeout_s, process.kill)
            killing.start()
            try:
                with suppress(BrokenPipeError), process.stdin:  # it may end before it has heard all
                    process.stdin.write(question)
                output = process.stdout.read(MOST_BYTES + 1)
                is_cut = len(output) > MOST_BYTES
                if not is_cut:
                    process.wait()
            finally:
                killing.cancel()
                process.kill()
        was_killed = process.returncode == -signal.SIGKILL and time.monotonic() >= deadline
        is_late = not is_cut and (was_killed or process.returncode == -signal.SIGXCPU)
        return Said(output=output[:MOST_BYTES], code=process.returncode, is_late=is_late, is_cut=is_cut)


def bound(*, memory_bytes: int, cpu_s: int) -> None:
    """Called by the process first: the kernel refuses it more memory to write to than `memory_bytes`, and ends it
    when its processor time is over."""
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
