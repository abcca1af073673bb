"""Another number of workers for a local cluster that runs: the supervisor is told, and waited for.

The number is in a file and the news of it a signal, so that two calls at once end with one of the two numbers, and a
supervisor that is busy misses nothing.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

from cerebro.errors import ClusterError
from cerebro.local import cluster, processes
from cerebro.local.child import ChildState
from cerebro.local.home import ClusterHome, ClusterInfo

_LOOK_AGAIN_S = 0.1


def scale(home: Path | str | None, workers: int, *, timeout_s: float) -> ClusterInfo:
    """Have so many workers at `home`; returns when new ones are registered and the others have ended.

    What only the volumes of ended workers hold is of no use until they are started again. Calling again with the same
    number is safe.

    Args:
        workers: from 1.
        timeout_s: how long to wait.

    Raises:
        ClusterError: no cluster runs there, or it was not done in time.
    """
    info = cluster.join(home)
    place = ClusterHome(info.home)
    place.size.write_text(str(workers))
    if not processes.send(info.supervisor, signal.SIGUSR1):
        raise ClusterError(f"the cluster at {place.path} has just ended: start it with `cerebro up`")
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        info = cluster.join(home)
        if _is_done(info, workers):
            return info
        processes.wait_gone(info.supervisor, _LOOK_AGAIN_S)
    late = [service for service in info.services if service.state != ChildState.READY]
    told = "; ".join(f"{service.name} is {service.state} {service.problem}".rstrip() for service in late)
    raise ClusterError(
        f"the cluster at {place.path} does not have {workers} workers after {timeout_s:g} s "
        f"({told or 'the reason is not known'}): "
        "see `cerebro status` and `cerebro logs supervisor`"
    )


def _is_done(info: ClusterInfo, workers: int) -> bool:
    return info.workers == workers and all(
        service.state == ChildState.READY for service in info.services if service.required
    )
