"""Check of the logs: how long they are, where they are, and whether they are kept short."""

from __future__ import annotations

import time

from cerebro.cli.doctor.check import Case, Finding, fail, ok, warn
from cerebro.cli.status import client, remote_client
from cerebro.contract.segments import SegmentsAnswer
from cerebro.errors import CerebroError

_BUDGET_S = 10.0
"""For asking; the newest experiments come first."""
_MANY = 100_000
"""Entries of one log in the database: three times what a log that grows has there."""


def logs(case: Case) -> Finding:
    """The older part of long logs is in files, so that the database stays small and a restart short."""
    is_remote = case.info is None
    try:
        kvs = client(case.info) if case.info else remote_client(case.environment)
        if kvs is None:
            return ok("no cluster runs")
        names = [each.experiment.name for each in kvs.experiments()]
        deadline, found = time.monotonic() + _BUDGET_S, {"the cluster": kvs.segments("")}
        for name in names:
            if time.monotonic() > deadline:
                break
            found[name] = kvs.segments(name)
    except CerebroError as problem:
        return fail(f"the lengths of logs are not known: {problem}", "cerebro status")
    looked = len(found) - 1
    rest = f" of the newest {looked} of {len(names)} experiments" if looked < len(names) else ""
    sizes = (
        f"{sum(each.left for each in found.values()):,} events in the database, "
        f"{sum(map(_moved, found.values())):,} in files of {sum(map(_bytes, found.values())) / 1e6:,.1f} MB{rest}"
    )
    longest = max(found, key=lambda name: found[name].left)
    if found[longest].left > _MANY:
        where = "kubectl logs deployment/cerebro-controller" if is_remote else "cerebro logs controller"
        return warn(
            f"{sizes}; {found[longest].left:,} events of {longest} wait to be moved into files",
            f"{where}: it says why the log of {longest} stays as long as it is",
        )
    return ok(sizes)


def _moved(found: SegmentsAnswer) -> int:
    return sum(segment.entries for segment in found.segments)


def _bytes(found: SegmentsAnswer) -> int:
    return sum(segment.size for segment in found.segments) + sum(kept.size for kept in found.snapshots)
