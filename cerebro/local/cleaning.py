"""What an unclean end can leave behind, and its removal.

A supervisor that was killed takes its services with it (`tether`), so this mostly finds nothing. It is for
what the leash cannot hold: programs that user code started in sessions of their own, and a machine that lost
power.
"""

from __future__ import annotations

from pathlib import Path

from cerebro.errors import ClusterError
from cerebro.local import processes
from cerebro.local.home import ClusterHome
from cerebro.local.processes import ProcessId

_GRACE_S = 2.0


def leftovers(home: ClusterHome) -> tuple[ProcessId, ...]:
    """Processes of the cluster at `home`, by the last record and by the mark in their environment."""
    info = home.read()
    recorded = {service.process for service in info.services if service.process} if info else set()
    return tuple({*filter(processes.is_alive, recorded), *processes.marked(home.path)})


def clean(home: ClusterHome, *, grace_s: float = _GRACE_S) -> tuple[ProcessId, ...]:
    """End leftover processes and remove a stale socket; returns the processes. The caller holds the home's
    lock.

    Raises:
        ClusterError: a process would not end.
    """
    found = leftovers(home)
    stubborn = processes.end(found, grace_s=grace_s)
    if stubborn:
        raise ClusterError(
            f"processes {[process.pid for process in stubborn]} of an earlier cluster at {home.path} do not "
            "end: end them by hand, or restart the machine"
        )
    info = home.read()
    sockets: set[Path] = {home.socket} | ({info.socket} if info else set())
    for path in sockets:
        path.unlink(missing_ok=True)
        if path.parent != home.run and path.parent.is_dir():
            path.parent.rmdir()  # the short folder, which holds nothing else
    return found
