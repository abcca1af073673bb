"""Remove remains of an unclean end: processes, sockets and scratch files of an earlier cluster at a home.

Called at each start and stop of a cluster, and by ``cerebro doctor``, which only lists processes. A killed supervisor
takes its services with it (`parent_death`), so this usually finds nothing. It is for programs that user code started
in other sessions, and for power loss. Experiments and volumes are never touched.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from cerebro.errors import ClusterError
from cerebro.local.home import ClusterHome
from cerebro.local.supervision import processes
from cerebro.local.supervision.processes import ProcessId

_GRACE_S = 2.0


def leftovers(home: ClusterHome) -> tuple[ProcessId, ...]:
    """Return running processes of the cluster at `home`, by the last record and the mark in their environment."""
    info = home.read()
    recorded = {service.process for service in info.services if service.process} if info else set()
    return tuple({*filter(processes.is_alive, recorded), *processes.marked(home.path)})


def clean(home: ClusterHome) -> tuple[ProcessId, ...]:
    """End leftover processes, remove stale sockets and scratch files; return the processes.

    The caller holds the home's lock.

    Raises:
        ClusterError: a process would not end.
    """
    found = leftovers(home)
    stubborn = processes.end(found, grace_s=_GRACE_S)
    if stubborn:
        raise ClusterError(
            f"processes {[process.pid for process in stubborn]} of an earlier cluster at {home.path} do not "
            "end: end them by hand, or restart the machine"
        )
    shutil.rmtree(home.scratch, ignore_errors=True)
    info = home.read()
    for path in {home.socket} | ({info.socket} if info else set()):
        remove_socket(home, path)
    return found


def remove_socket(home: ClusterHome, path: Path) -> None:
    """Remove the database's socket, and its folder if that is the short one, which holds nothing else."""
    try:
        path.unlink(missing_ok=True)
        if path.parent != home.run and path.parent.is_dir():
            path.parent.rmdir()
    except OSError:  # another user's folder; `prepare_socket` reports it if it matters
        pass
