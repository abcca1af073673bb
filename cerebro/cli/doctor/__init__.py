"""``cerebro doctor``: everything a user can get wrong about a machine, checked, with how to mend it.

Each check looks at one thing, changes nothing, and never raises: a check that cannot be made is itself a
finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from cerebro.cli.doctor import cluster, installation, machine, settings
from cerebro.cli.doctor.check import Case, Check, Verdict, failed
from cerebro.local.cluster import DEFAULT_WORKERS
from cerebro.local.home import ClusterHome, find_running

__all__ = ["Case", "Check", "Verdict", "examine"]

CHECKS: tuple[Callable[[Case], Check], ...] = (
    *installation.CHECKS,
    *machine.CHECKS,
    *settings.CHECKS,
    *cluster.CHECKS,
)
"""In the order in which one rests on the other."""


def examine(
    home: ClusterHome, environment: Mapping[str, str], *, workers: int | None = None
) -> Iterator[Check]:
    """Make all checks, one after the other.

    Args:
        home: the cluster's folder; need not exist.
        environment: of the shell or notebook the user works in.
        workers: for how many workers the machine is to be good; by default those of the running cluster.
    """
    info = find_running(home)
    wanted = workers or (info.workers if info else DEFAULT_WORKERS)
    case = Case(home=home, environment=environment, workers=wanted, info=info)
    for check in CHECKS:
        yield _made(check.__name__, check, case)
    if info is not None:
        for service in info.services:
            yield _made(service.name, partial(cluster.service, found=service), case)


def _made(name: str, check: Callable[[Case], Check], case: Case) -> Check:
    try:
        return check(case)
    except Exception as cause:  # noqa: BLE001 - whatever is wrong with the machine, the other checks go on
        return failed(
            name,
            f"could not be checked: {type(cause).__name__}: {cause}",
            "this is a defect of `cerebro doctor`: report it with this line",
        )
