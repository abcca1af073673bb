"""User code in a process that was forked from one which has imported what every task needs, and has run no user code.

So what one user's code changed in its process is never met by another's, and yet nobody waits for an interpreter and
for torch again. The first process stays. It waits for the one that it forked. It ends as that one ended, so that the
agent sees the death of user code as if it had started that process itself; or it forks the next one, when other code
has its turn.

To fork is safe as long as the first process only imports: libraries start the threads that a fork would lose when they
first compute, and CUDA when it is first asked for a device.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from cerebro.runtime.ending import end_after, fork
from cerebro.runtime.parent_death import end_with

Work = Callable[[bytes], bytes]
"""Serves in a process that was forked for it. Given is what the one before left unread; it returns what it has read and
leaves to the next one, or nothing when all is done."""

MARK = "CEREBRO_CHILD"
"""Variable of a process for user code, and so of all that user code starts: told apart by it, whatever they make of
their group and session."""

_PAUSE_S, _ROUNDS = 0.01, 200
_PAGE = 1 << 20


def serve(work: Work, attend: Callable[[int], int] = lambda process: os.waitpid(process, 0)[1]) -> NoReturn:
    """Run `work` in one forked process after another. To be called by a process without threads.

    Args:
        attend: waits for a process, which it is given the id of, and returns its status.
    """
    # What is there already stays as it is, and so in memory that all of them share; so does the little garbage in it,
    # which takes longer to find than a fork takes.
    gc.freeze()
    gc.enable()
    unread = b""
    while True:
        left = os.memfd_create("unread")  # shared by fork
        own = os.getpid()
        process = fork()
        if process == 0:
            _work(work, unread, left, own)
        status = attend(process)
        _end_others()
        if status:
            end_like(status)
        unread = _content(left)
        os.close(left)
        if not unread:
            os._exit(0)


def _work(work: Work, unread: bytes, left: int, parent: int) -> NoReturn:
    """In the forked process. It ends here, without what an interpreter does at its end: that was not set up for it."""

    def serve_one() -> None:
        end_with(parent)
        rest = memoryview(work(unread))
        while rest:
            rest = rest[os.write(left, rest) :]

    end_after(serve_one)


def end_like(status: int) -> NoReturn:
    """End with the exit status, or by the signal, of another process."""
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # it has left its own core
        number = os.WTERMSIG(status)
        with suppress(OSError, ValueError):  # of SIGKILL nothing can be set
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        time.sleep(1)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _content(descriptor: int) -> bytes:
    os.lseek(descriptor, 0, os.SEEK_SET)
    found = bytearray()
    while part := os.read(descriptor, _PAGE):
        found += part
    return bytes(found)


def _end_others() -> None:
    """End the processes of this one's group but itself, and those that have left it: what user code started and left
    behind."""
    own = os.getpid()
    if os.getpgrp() == own:  # whose they are is not known otherwise
        end_left(own, os.environ.get(MARK, ""), but=own)


def end_left(group: int, mark: str, *, but: int = 0) -> None:
    """End the processes of a group, and those that began in it and made a group of their own, as daemons do.

    Args:
        mark: the value of `MARK` that all of them were started with.
        but: this one goes on.
    """
    for _ in range(_ROUNDS):
        others = {*members(group), *_marked(mark)} - {but}
        if not others:
            return
        for process in others:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(_PAUSE_S)


def members(group: int) -> list[int]:
    """Processes of a group that run."""
    return [process for process, state in _states(group) if state not in (b"Z", b"X")]


def is_stopped(group: int) -> bool:
    """Whether a process of a group was stopped by a signal."""
    return any(state in (b"T", b"t") for _, state in _states(group))


def _marked(mark: str) -> list[int]:
    """Processes that were started with this mark, and run: also with another parent, group or session by now."""
    if not mark:
        return []
    found, sought = [], f"{MARK}={mark}".encode()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):  # another user's, or it has ended; a zombie has no environment
                if sought in Path("/proc", entry.name, "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def _states(group: int) -> list[tuple[int, bytes]]:
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError), Path("/proc", entry.name, "stat").open("rb") as file:
                state, _, its = file.read().rpartition(b")")[2].split()[:3]
                if int(its) == group:
                    found.append((int(entry.name), state))
    return found
