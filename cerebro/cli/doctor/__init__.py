"""``cerebro doctor``: checks of the machine, the settings and the cluster, each with a remedy.

A check changes nothing and never raises: a check that cannot run is a finding. `check` defines findings. The other
modules have the checks of one topic.
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
    "plugins": installation.plugins_of_packages,
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
    "notifications": cluster.notifications,
    "checkpoints": checkpoints.final_checkpoints,
    "logs": logs.logs,
}
"""Name in the output -> check, in the order of their dependencies."""


def examine(
    home: ClusterHome, environment: Mapping[str, str], *, workers: int | None = None
) -> Iterator[tuple[str, Finding]]:
    """Run all checks, one after the other.

    Args:
        home: the cluster's folder; need not exist.
        environment: environment variables of the user's shell or notebook.
        workers: number of workers to check for; default: as in the running or a new cluster.
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
        except Exception as cause:  # noqa: BLE001 - the other checks must run, too
            message = f"could not be checked: {type(cause).__name__}: {cause}"
            yield name, fail(message, "this is a defect of `cerebro doctor`: report it with this line")
