"""The end of a process that has computed, without what an interpreter does at its end.

Threads of libraries outlive what they were started for: gloo's stay until the last reference to a group has gone, which
may be in the middle of the interpreter's own end, and then C++ ends the process with SIGABRT ("terminate called
without an active exception") after all its work was done.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn


def fork() -> int:
    """Fork a process that ends by `end_after`. Write buffered output first, or both processes would write it."""
    _flush()
    return os.fork()


def end_after(work: Callable[[], object]) -> NoReturn:
    """Do it and end this process at once: with status 0, or with 1 and a traceback on stderr if it raised."""
    code = 1
    try:
        work()
        code = 0
    except BaseException:  # noqa: BLE001 - its outermost frame: told as any process tells it
        traceback.print_exc()
    _flush()
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
