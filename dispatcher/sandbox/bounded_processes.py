"""Work on what users gave, in a process of its own: bounded in time, memory and answer, without the cluster's token,
and without keys of object stores unless it is there to look into them.

A question goes in on standard input, JSON comes out on standard output. The process is killed when its time is over or
its answer is too long; the answer until then counts. The last lines of standard error tell people why a process died.
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
from typing import IO

from cerebro.runtime.parent_death import with_parent_death_signal
from dispatcher.sandbox.slots import Slots

MOST_BYTES = 16 << 20
"""Of an answer: five hundred lines that were found, or an image of 2 MiB for each split, fit."""

_ERROR_BYTES = 8 << 10
"""Kept of standard error, from its end."""
_LONGEST_ERROR = 300
"""Characters of standard error that a page shows."""
_SHORTEST_SECRET = 8
"""Characters; shorter values are words that any text has."""

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
    error: str = ""
    """The end of its standard error, without secrets."""

    @property
    def ending(self) -> str:
        """How the process ended, in words: its exit status or signal, and the last line of its standard error."""
        lines = [line.strip() for line in self.error.splitlines() if line.strip()]
        last = f": {lines[-1][:_LONGEST_ERROR]}" if lines else ""
        if self.code >= 0:
            return f"its process ended with exit status {self.code}{last}"
        name = (
            signal.Signals(-self.code).name if -self.code in set(signal.Signals) else f"signal {-self.code}"
        )
        hint = ", as happens where the machine or container has no memory left" if name == "SIGKILL" else ""
        return f"its process was ended by {name}{hint}{last}"


class BoundedProcesses:
    """Runs ``python -m MODULE``, which hears its question before it answers; at most `at_once` at a time. Safe for
    several threads.

    Only with `has_keys` it gets the variables of object stores.
    """

    def __init__(self, module: str, *, at_once: int, has_keys: bool = False) -> None:
        self._module = module
        self._withheld = _SECRETS if has_keys else (*_SECRETS, *_OF_OBJECT_STORES)
        self._slots = Slots("requests of this kind", at_once=at_once)

    def ask(self, question: bytes, *, timeout_s: float) -> Said:
        """The answer to a question.

        Args:
            timeout_s: limit of the process, and of the wait for a free slot before it.

        Raises:
            BusyError: too many requests wait already, or no slot became free in time.
        """
        with self._slots.taken(wait_s=timeout_s):
            return self._ask(question, timeout_s)

    def _ask(self, question: bytes, timeout_s: float) -> Said:
        environment = {name: text for name, text in os.environ.items() if not name.startswith(self._withheld)}
        command = with_parent_death_signal([sys.executable, "-P", "-m", self._module])
        deadline = time.monotonic() + timeout_s
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            killing = threading.Timer(timeout_s, process.kill)
            killing.start()
            errors = bytearray()
            listening = threading.Thread(target=_keep_end, args=(process.stderr, errors), daemon=True)
            listening.start()
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
                listening.join()
        was_killed = process.returncode == -signal.SIGKILL and time.monotonic() >= deadline
        is_late = not is_cut and (was_killed or process.returncode == -signal.SIGXCPU)
        return Said(
            output=output[:MOST_BYTES],
            code=process.returncode,
            is_late=is_late,
            is_cut=is_cut,
            error=_without_secrets(errors.decode(errors="replace")),
        )


def _keep_end(stream: IO[bytes], kept: bytearray) -> None:
    """Read a whole stream; leave the last `_ERROR_BYTES` in `kept`."""
    while piece := os.read(stream.fileno(), _ERROR_BYTES):
        kept += piece
        del kept[:-_ERROR_BYTES]


def _without_secrets(text: str) -> str:
    """A text without the values of variables that hold tokens, or addresses and keys of object stores."""
    names = (*_SECRETS, *_OF_OBJECT_STORES)
    values = {value for name, value in os.environ.items() if name.startswith(names)}
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, "...") if len(value) >= _SHORTEST_SECRET else text
    return text


def bound(*, memory_bytes: int, cpu_s: int) -> None:
    """Called by the process first: the kernel refuses it more memory to write to than `memory_bytes`, and ends it
    when its processor time is over."""
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
