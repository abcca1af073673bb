"""Child processes for untrusted input, with limits on time, memory and output.

Used for searches in logs (`LogReader`), locators (`LocatorCheck`) and experiment files (`FileReader`). A request goes
to standard input, the answer comes from standard output. The process is killed after a timeout or more than 16 MiB of
output; output until then counts. The environment excludes the cluster's token, and excludes keys of object stores
unless the process needs them. Not a full sandbox: the process runs as the dispatcher's user, and the child itself
sets its memory limit.
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

from cerebro.runtime.isolation.parent_death import with_parent_death_signal
from dispatcher.sandbox.slots import Slots

MAX_BYTES = 16 << 20
"""Maximum size of an answer: five hundred matching lines, or an image of 2 MiB for each split."""

_ERROR_BYTES = 8 << 10
"""Bytes to keep from the end of standard error."""
_MAX_ERROR_LENGTH = 300
"""Maximum characters of standard error on a page."""
_MIN_SECRET_LENGTH = 8
"""Minimum length of a secret. Shorter values are common words."""

_SECRETS = ("CEREBRO_TOKEN",)
_OBJECT_STORE_PREFIXES = ("AWS_", "BOTO_", "S3_")
"""Prefixes of variables with addresses and keys of object stores."""


@dataclass(frozen=True, kw_only=True)
class ProcessResult:
    """Result of a process. It was killed if `is_late` (elapsed or CPU time) or `is_cut` (more than `MAX_BYTES`)."""

    output: bytes
    code: int
    is_late: bool = False
    is_cut: bool = False
    error: str = ""
    """End of its standard error, without secrets."""

    @property
    def ending(self) -> str:
        """How the process ended: exit status or signal, and the last line of standard error."""
        lines = [line.strip() for line in self.error.splitlines() if line.strip()]
        last = f": {lines[-1][:_MAX_ERROR_LENGTH]}" if lines else ""
        if self.code >= 0:
            return f"its process ended with exit status {self.code}{last}"
        name = (
            signal.Signals(-self.code).name if -self.code in set(signal.Signals) else f"signal {-self.code}"
        )
        hint = ", as happens where the machine or container has no memory left" if name == "SIGKILL" else ""
        return f"its process was ended by {name}{hint}{last}"


class BoundedProcesses:
    """Runs ``python -m MODULE`` with at most `at_once` processes. Safe for several threads.

    The module must read its whole input before it answers. Only with `has_keys` it gets the variables of object
    stores.
    """

    def __init__(self, module: str, *, at_once: int, has_keys: bool = False) -> None:
        self._module = module
        self._withheld = _SECRETS if has_keys else (*_SECRETS, *_OBJECT_STORE_PREFIXES)
        self._slots = Slots("requests of this kind", at_once=at_once)

    def run(self, request: bytes, *, timeout_s: float) -> ProcessResult:
        """Run a process with `request` as its input.

        Args:
            timeout_s: limit for the process, and before that for the wait for a free slot.

        Raises:
            BusyError: too many requests are waiting, or no slot became free in time.
        """
        with self._slots.taken(wait_s=timeout_s):
            return self._run(request, timeout_s)

    def _run(self, request: bytes, timeout_s: float) -> ProcessResult:
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
                with (
                    suppress(BrokenPipeError),
                    process.stdin,
                ):  # the process may end before it has read everything
                    process.stdin.write(request)
                output = process.stdout.read(MAX_BYTES + 1)
                is_cut = len(output) > MAX_BYTES
                if not is_cut:
                    process.wait()
            finally:
                killing.cancel()
                process.kill()
                listening.join()
        was_killed = process.returncode == -signal.SIGKILL and time.monotonic() >= deadline
        is_late = not is_cut and (was_killed or process.returncode == -signal.SIGXCPU)
        return ProcessResult(
            output=output[:MAX_BYTES],
            code=process.returncode,
            is_late=is_late,
            is_cut=is_cut,
            error=_without_secrets(errors.decode(errors="replace")),
        )


def _keep_end(stream: IO[bytes], end: bytearray) -> None:
    """Read a whole stream and keep its last `_ERROR_BYTES` in `end`."""
    while piece := os.read(stream.fileno(), _ERROR_BYTES):
        end += piece
        del end[:-_ERROR_BYTES]


def _without_secrets(text: str) -> str:
    """Replace the values of secret variables in a text."""
    names = (*_SECRETS, *_OBJECT_STORE_PREFIXES)
    values = {value for name, value in os.environ.items() if name.startswith(names)}
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, "...") if len(value) >= _MIN_SECRET_LENGTH else text
    return text


def limit_process(*, memory_bytes: int, cpu_s: int) -> None:
    """Limit the memory and CPU time of the current process. A child process calls this first."""
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
