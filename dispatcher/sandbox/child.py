"""Work on what users gave, in a process of its own: bounded in time and memory, without the cluster's token, and
without keys of object stores unless it is there to look into them.

A question goes in on standard input, JSON comes out on standard output. The process is killed when its time is over or
it says too much; what it has said by then counts.
"""

from __future__ import annotations

import os
import resource
import selectors
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import BinaryIO

from cerebro.errors import ClusterError
from cerebro.runtime.parent_death import with_parent_death_signal

MOST_BYTES = 8 << 20
"""Of an answer: five hundred lines that were found, or an image of 4 MiB as text, fit."""

_PIECE = 64 << 10
_SECRETS = ("CEREBRO_TOKEN",)
_OF_OBJECT_STORES = ("AWS_", "BOTO_", "S3_")
"""How variables begin that hold addresses and keys of object stores."""


@dataclass(frozen=True, kw_only=True)
class Said:
    """What came of a child. It was killed if `is_late`, when its time was over, and if `is_cut`, after `MOST_BYTES`."""

    output: bytes
    code: int
    is_late: bool = False
    is_cut: bool = False


class BusyError(ClusterError):
    """As many children run as may; the caller is to try again."""


class Children:
    """Runs ``python -m MODULE``, at most `at_once` at a time. Safe for several threads.

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
            # Beside the reading: a child may speak before it has listened to the end.
            telling = threading.Thread(target=_tell, args=(process.stdin, question), daemon=True)
            telling.start()
            assert process.stdout is not None
            try:
                output, is_late = _heard(process.stdout.fileno(), deadline)
                is_cut = len(output) > MOST_BYTES
                if not is_late and not is_cut:
                    process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                is_late = True
            finally:
                process.kill()
                telling.join()  # its pipe has no reader any more
        return Said(output=output[:MOST_BYTES], code=process.returncode, is_late=is_late, is_cut=is_cut)


def _tell(pipe: BinaryIO, question: bytes) -> None:
    try:
        with pipe:
            pipe.write(question)
    except OSError:
        pass  # it ended, or was killed, before it heard all


def _heard(pipe: int, deadline: float) -> tuple[bytes, bool]:
    """What comes out of a pipe, up to a piece more than `MOST_BYTES`, and whether it was open at the deadline."""
    heard = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while len(heard) <= MOST_BYTES:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return bytes(heard), True
            piece = os.read(pipe, _PIECE)
            if not piece:
                break
            heard += piece
    return bytes(heard), False


def bound(*, memory_bytes: int, cpu_s: int, data_bytes: int = resource.RLIM_INFINITY) -> None:
    """Called by the child first: the kernel refuses it more memory, and ends it when its processor time is over.

    `memory_bytes` is of addresses, also of those that are only reserved; `data_bytes` of what can be written to.
    """
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
