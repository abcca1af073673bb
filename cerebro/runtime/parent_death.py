"""The parent-death signal: a process ends when the process that started it ends, however that ended.

Owns the one system call (Linux ``prctl(PR_SET_PDEATHSIG)``) that ties a child to its parent. The supervisor
wraps every service in it and the agent every child, so that a ``kill -9`` of either leaves nobody behind to
hold ports, GPU memory or locks. It is a program of its own that asks for the signal and then *becomes* the command
(`os.execvp`: same pid, nothing left over in memory), because the alternative, `subprocess`'s ``preexec_fn``,
runs Python between fork and exec, where a lock held by another thread hangs the child.

What runs beside training gets its niceness in the same step. Where the kernel groups processes by session
(sched(7), "The autogroup feature"), a niceness counts within a session only and the session has one of its own,
which is set, too.

Runs as a script under ``python -I -S``: standard library only, nothing of Cerebro.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
_EXIT_CANNOT_EXECUTE = 127
_FIRST_OF_COMMAND = 4

BACKGROUND = 15
"""Niceness, of the scale to 19, of work beside training that nobody waits for: training goes first."""


def with_parent_death_signal(command: Sequence[str], niceness: int = 0) -> list[str]:
    """The command line that runs `command` and has it killed (SIGKILL) when the calling process ends.

    Start it from a thread that lives as long as the process: the kernel sends the signal when the *thread*
    that forked ends. `command` keeps the pid that is returned to the caller. On other systems than Linux it
    just runs `command`.

    Args:
        niceness: of the process. Start one that has any with ``start_new_session=True``: the niceness of the caller's
            session would change with it.
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(niceness), "--", *command]


def main(arguments: Sequence[str]) -> int:
    """Become ``arguments[3:]`` of niceness ``arguments[1]``, tied to the parent with pid ``arguments[0]``.

    Returns only if that failed.
    """
    if len(arguments) < _FIRST_OF_COMMAND or arguments[2] != "--":
        sys.stderr.write("usage: python -I -S parent_death.py PARENT_PID NICENESS -- COMMAND...\n")
        return 2
    parent, niceness, command = int(arguments[0]), int(arguments[1]), list(arguments[3:])
    if sys.platform == "linux":
        import ctypes  # here: those who only wrap command lines stay light

        library = ctypes.CDLL(None, use_errno=True)
        if library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            sys.stderr.write(f"tether: prctl: {os.strerror(ctypes.get_errno())}\n")
            return _EXIT_CANNOT_EXECUTE
        # The parent may have ended before the signal was asked for; then nobody will send the signal.
        if os.getppid() != parent:
            return 0
    if niceness:
        _be_nice(niceness)
    try:
        os.execvp(command[0], command)  # it replaces this process, searching PATH
    except OSError as cause:
        sys.stderr.write(f"tether: cannot execute {command[0]}: {cause.strerror}\n")
    return _EXIT_CANNOT_EXECUTE


def _be_nice(niceness: int) -> None:
    os.nice(niceness)
    try:
        with open("/proc/self/autogroup", "w") as session:  # noqa: PTH123 - pathlib takes longer to import than the rest
            session.write(str(niceness))
    except OSError:
        pass  # this kernel does not group by session, or not here: then the niceness counts as it is


def end_with(parent: int) -> None:
    """For a process that was forked: have it killed when its parent ends, however that ended."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
