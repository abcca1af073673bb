"""The check ``logs`` of ``cerebro doctor``: do old events move from the database into files?

It compares the number of events in the database with a limit of 100,000 for each log, and reads no event.
`controller.loop.log_keeper` moves them.
"""

from __future__ import annotations

import time

from cerebro.cli.administration.cluster_status import client, remote_client
from cerebro.cli.doctor.check import Case, Finding, fail, ok, warn
from cerebro.contract.stored.segments import SegmentsAnswer
from cerebro.errors import CerebroError

_BUDGET_S = 10.0
"""Time limit; the newest experiments are checked first."""
_MANY = 100_000
"""Events of one log in the database above which to warn; a growing log normally has a third."""


def logs(case: Case) -> Finding:
    """Check that old parts of long logs move to files, which keeps the database small."""
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
        return fail(f"the lengths of logs cannot be read: {problem}", "cerebro status")
    num_checked = len(found) - 1
    rest = f" of the newest {num_checked} of {len(names)} experiments" if num_checked < len(names) else ""
    sizes = (
        f"{sum(each.remaining for each in found.values()):,} events in the database, "
        f"{sum(map(_moved, found.values())):,} in files of {sum(map(_bytes, found.values())) / 1e6:,.1f} MB{rest}"
    )
    longest = max(found, key=lambda name: found[name].remaining)
    if found[longest].remaining > _MANY:
        where = "kubectl logs deployment/cerebro-controller" if is_remote else "cerebro logs controller"
        return warn(
            f"{sizes}; {found[longest].remaining:,} events of {longest} wait to be moved into files",
            f"{where}: it has the reason why the log of {longest} does not shrink",
        )
    return ok(sizes)


def _moved(found: SegmentsAnswer) -> int:
    return sum(segment.entries for segment in found.segments)


def _bytes(found: SegmentsAnswer) -> int:
    return sum(segment.size for segment in found.segments) + sum(
        snapshot.size for snapshot in found.snapshots
    )
