"""Hide the agent's token from user code, which runs under the same user id.

`worker.agent.__main__` calls it at start, before any child exists. Uses Linux' ``prctl(PR_SET_DUMPABLE)``: for a
process that is not dumpable, other processes of its user cannot read ``/proc/PID/environ``, ``mem`` and ``fd`` or trace
it (proc(5), ptrace(2)). Removing the variable is not enough: ``environ`` keeps the initial values. This does not stop
processes with ``CAP_SYS_PTRACE``, such as root outside containers.
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
    """Remove variables that child processes must not inherit. Even pip runs code of user packages."""
    for name in SECRETS:
        environment.pop(name, None)


def hide_process() -> None:
    """Hide this process from others of its user. Does not extend to executed programs; Linux only.

    For containers. On a laptop a file of the same user contains the token, and the supervisor finds a dead
    cluster's processes by their ``environ``, and a worker's connections by its ``fd``.

    Raises:
        ClusterError: the kernel refused.
    """
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        why = os.strerror(ctypes.get_errno())
        raise ClusterError(f"the token cannot be hidden from user code: prctl(PR_SET_DUMPABLE): {why}")
