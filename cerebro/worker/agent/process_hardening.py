"""Keeps the agent's token from the user code that it runs, which has the same user id.

Owns the use of Linux' ``prctl(PR_SET_DUMPABLE)``: of a process that is not dumpable, ``/proc/PID/environ``, ``mem``
and ``fd`` are closed to others of its user, and so is tracing it (proc(5), ptrace(2)). To remove the variable would not
do: what a process was started with stays readable in ``environ``. It does not hold against who may trace any process
(``CAP_SYS_PTRACE``), as root outside containers may.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import MutableMapping

from cerebro.errors import ClusterError
from cerebro.worker.agent.settings import SECRETS

_PR_SET_DUMPABLE = 4


def forget_secrets(environment: MutableMapping[str, str]) -> None:
    """Remove what no process that is started from here may inherit: also pip runs code of the user's packages."""
    for name in SECRETS:
        environment.pop(name, None)


def hide_process() -> None:
    """Close this process to others of its user; what it starts by exec is open again. Linux only; elsewhere nothing.

    For containers. On a laptop the token lies in a file of the same user, and the supervisor finds a dead cluster's
    processes by their ``environ``, and a worker's connections by its ``fd``.

    Raises:
        ClusterError: the kernel refused.
    """
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        why = os.strerror(ctypes.get_errno())
        raise ClusterError(f"the token cannot be hidden from user code: prctl(PR_SET_DUMPABLE): {why}")
