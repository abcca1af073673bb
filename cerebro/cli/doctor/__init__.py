"""``cerebro doctor``: everything a user can get wrong about a machine, checked, with how to mend it.

Each check looks at one thing, changes nothing, and never raises: a check that cannot be made is itself a
finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from cerebro.cli.doctor import checkpoints, cluster, installation, logs, machine, settings
from cerebro.cli.doctor.check import Case, Finding, Verdict, fail
from cerebro.local.cluster import DEFAULT_WORKERS
from cerebro.local.home import ClusterHome, find_running

__all__ = ["Case", "Finding", "Verdict", "examine"]

CHECKS: dict[str, Callable[[Case], Finding]] = {
    "python": installation.python,
    "packages": installation.packages,
    "torch": installation.torch,
    "database": installation.database_server,
    "cores": machine.cores,
    "memory": machine.memory,
    "/dev/shm": machine.shared_memory,
    "sandbox": machine.sandbox,
    "open files": machine.open_files,
    "clock": machine.clock,
    "loopback": machine.loopback,
    "home": machine.home_folder,
    "space": machine.space,
    "server": settings.server,
    "s3": settings.object_store,
    "token": cluster.token,
    "socket": cluster.database_socket,
    "ports": cluster.addresses,
    "leftovers": cluster.leftovers,
    "cluster": cluster.running,
    "threads": cluster.threads,
    "machines": cluster.machines,
    "experiments": cluster.experiments,
    "checkpoints": checkpoints.final_checkpoints,
    "logs": logs.logs,
}
"""By the names that people see, in the order in which one rests on the other."""


def examine(
    home: ClusterHome, environment: Mapping[str, str], *, workers: int | None = None
) -> Iterator[tuple[str, Finding]]:
    """Make all checks, one after the other.

    Args:
        home: the cluster's folder; need not exist.
        environment: of the shell or notebook the user works in.
        workers: for how many workers the machine is to be good; by default those of the running cluster.
    """
    info = find_running(home)
    wanted = workers or (info.workers if info else DEFAULT_WORKERS)
    case = Case(home=home, environment=environment, workers=wanted, info=info)
    checks = dict(CHECKS)
    for service in info.services if info else ():
        checks[service.name] = partial(cluster.service, found=service)
    for name, check in checks.items():
        try:
            yield name, check(case)
        except Exception as cause:  # noqa: BLE001 - whatever is wrong with the machine, the other checks go on
            message = f"could not be checked: {type(cause).__name__}: {cause}"
            yield name, fail(message, "this is a defect of `cerebro doctor`: report it with this line")
