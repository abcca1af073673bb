"""Fork processes for user code. The parent has imported modules but run no user code.

The child's `task_loop.main` calls `serve` and never returns. User code never sees changes by other user code, and no
task waits again for an interpreter and torch. The first process waits for its fork. It then ends in the same way, so
that the agent sees the death of user code as if it had started that process itself, or forks the next one for other
code. Forking is safe while the first process only imports: libraries start threads, which a fork would lose, when they
first compute, and CUDA when a device is first used. The module also finds and kills leftover processes of user code,
for the agent's `ChildProcess` too.
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

from cerebro.runtime.isolation.parent_death import end_with
from cerebro.runtime.isolation.process_exit import end_after, fork

Work = Callable[[bytes], bytes]
"""Serves in a forked process. Receives its predecessor's unread bytes, returns its own, or b"" at the end."""

MARK = "CEREBRO_CHILD"
"""Environment variable that marks a user-code process and its descendants, in any group or session."""

_PAUSE_S, _ROUNDS = 0.01, 200
"""Seconds between two rounds of killing leftover processes, and their maximum number."""
_READ_BYTES = 1 << 20


def serve(work: Work, attend: Callable[[int], int] = lambda process: os.waitpid(process, 0)[1]) -> NoReturn:
    """Run `work` in one forked process after another. The caller must have no threads.

    Args:
        attend: waits for a process id and returns its status.
    """
    # Freeze existing objects to keep their pages shared. Finding the little garbage takes longer than a fork.
    gc.freeze()
    gc.enable()
    unread = b""
    while True:
        unread_file = os.memfd_create("unread")  # shared by fork
        pid = os.getpid()
        process = fork()
        if process == 0:
            _work(work, unread, unread_file, pid)
        status = attend(process)
        _end_others()
        if status:
            end_like(status)
        unread = _content(unread_file)
        os.close(unread_file)
        if not unread:
            os._exit(0)


def _work(work: Work, unread: bytes, unread_file: int, parent: int) -> NoReturn:
    """Run in the fork and end without interpreter shutdown, which is not set up for it."""

    def serve_one() -> None:
        end_with(parent)
        rest = memoryview(work(unread))
        while rest:
            rest = rest[os.write(unread_file, rest) :]

    end_after(serve_one)


def end_like(status: int) -> NoReturn:
    """End with the exit status, or by the signal, of another process."""
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # it has left its own core
        number = os.WTERMSIG(status)
        with suppress(OSError, ValueError):  # SIGKILL has no handler
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        time.sleep(1)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _content(descriptor: int) -> bytes:
    os.lseek(descriptor, 0, os.SEEK_SET)
    found = bytearray()
    while part := os.read(descriptor, _READ_BYTES):
        found += part
    return bytes(found)


def _end_others() -> None:
    """Kill leftover processes of user code: all others of this group, and marked processes that left it."""
    pid = os.getpid()
    if os.getpgrp() == pid:  # otherwise the processes may belong to others
        end_leftovers(pid, os.environ.get(MARK, ""), but=pid)


def end_leftovers(group: int, mark: str, *, but: int = 0) -> None:
    """Kill a group's processes and marked processes that left the group, as daemons do.

    Args:
        mark: value of `MARK` that they were started with.
        but: process to spare.
    """
    for _ in range(_ROUNDS):
        processes = {*members(group), *_marked(mark)} - {but}
        if not processes:
            return
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(_PAUSE_S)


def members(group: int) -> list[int]:
    """Return the running processes of a group."""
    return [process for process, state in _states(group) if state not in (b"Z", b"X")]


def is_stopped(group: int) -> bool:
    """True if a signal stopped a process of a group."""
    return any(state in (b"T", b"t") for _, state in _states(group))


def _marked(mark: str) -> list[int]:
    """Return running processes with this mark, in any group or session."""
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
