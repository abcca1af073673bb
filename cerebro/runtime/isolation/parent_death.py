"""Parent-death signal: a process is killed when its parent ends in any way.

Wraps the Linux system call ``prctl(PR_SET_PDEATHSIG)``. The supervisor wraps every service and the agent every child,
so a ``kill -9`` of either leaves no process with ports, GPU memory or locks. This program requests the signal and then
*becomes* the command (`os.execvp`: same pid, no extra memory). `subprocess`'s ``preexec_fn`` would run Python between
fork and exec, where a lock held by another thread hangs the child. The same step sets the niceness of processes that
run next to training. Where the kernel groups processes by session (sched(7), "The autogroup feature"), a niceness
counts only within a session, so the session's niceness is set, too.

Runs as a script under ``python -I -S``: standard library only, without Cerebro.
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
"""Niceness (maximum 19) of background work, which yields to training."""


def with_parent_death_signal(command: Sequence[str], niceness: int = 0) -> list[str]:
    """Return the command line that runs `command` and kills it (SIGKILL) when the calling process ends.

    Start it from a thread that lives as long as the process: the kernel sends the signal when the *thread*
    that forked ends. `command` keeps the pid. On other systems than Linux it only runs `command`.

    Args:
        niceness: niceness of the process. If set, start it with ``start_new_session=True``, because it
            changes the session's niceness.
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
        import ctypes  # imported here, so that importing this module stays cheap

        library = ctypes.CDLL(None, use_errno=True)
        if library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            sys.stderr.write(f"parent_death: prctl: {os.strerror(ctypes.get_errno())}\n")
            return _EXIT_CANNOT_EXECUTE
        # If the parent ended before the request, the kernel never sends the signal.
        if os.getppid() != parent:
            return 0
    if niceness:
        _be_nice(niceness)
    try:
        os.execvp(command[0], command)  # it replaces this process, searching PATH
    except OSError as cause:
        sys.stderr.write(f"parent_death: cannot execute {command[0]}: {cause.strerror}\n")
    return _EXIT_CANNOT_EXECUTE


def _be_nice(niceness: int) -> None:
    os.nice(niceness)
    try:
        with open("/proc/self/autogroup", "w") as session:  # noqa: PTH123 - pathlib takes longer to import than the rest
            session.write(str(niceness))
    except OSError:
        pass  # no autogroups in this kernel, so the plain niceness counts


def end_with(parent: int) -> None:
    """Have this forked process killed (SIGKILL) when its parent ends in any way."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the request
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
