"""Fork a process, and end it after its computation without the interpreter's shutdown.

The worker's child forks processes for user code with it; ranks of replays and conformance checks end with `end_after`.

Library threads may outlive their purpose: gloo's live until the last reference to a group is gone. If that happens
during shutdown, C++ ends the process with SIGABRT ("terminate called without an active exception") although its work is
done.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn


def fork() -> int:
    """Fork a process that ends by `end_after`. Write buffered output first, or both processes would write it."""
    _flush()
    with no_collection():
        pid = os.fork()
        if pid == 0:
            gc.freeze()
        return pid


@contextmanager
def no_collection() -> Iterator[None]:
    """Pause garbage collection around a fork, until the child has called `gc.freeze`.

    The child has one thread. A finaliser of the parent's garbage may join another thread, as gloo's do, and would
    wait for ever.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def end_after(work: Callable[[], object]) -> NoReturn:
    """Call `work` and end this process at once: status 0, or 1 and a traceback on stderr if it raised."""
    code = 1
    try:
        work()
        code = 0
    except BaseException:  # noqa: BLE001 - the outermost frame: reports it as any process does
        traceback.print_exc()
    _flush()
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
