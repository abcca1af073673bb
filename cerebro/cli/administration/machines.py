"""``cerebro check``, ``cerebro quarantine`` and ``cerebro release``: the health of workers' machines.

Each sends a request to the store. ``check`` waits for the results, which the workers' agents report. The controller
also quarantines workers by itself (`controller.exclusions.health`).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from cerebro.cli.administration.scale import cluster_client
from cerebro.errors import ClusterError

if TYPE_CHECKING:
    from cerebro.contract.stored.health import CheckResult, HealthAnswer
    from cerebro.runtime.kvs.client import KvsClient

_POLL_S = 0.5


def register(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``check``, ``quarantine`` and ``release`` to the subcommands.

    Args:
        common: parser of the options shared by all commands on a cluster.
    """
    check = commands.add_parser(
        "check", parents=[common], help="check workers' machines: arithmetic, memory, volumes"
    )
    check.add_argument(
        "worker",
        metavar="WORKER",
        nargs="?",
        help="its name in `cerebro status` (default: all training workers)",
    )
    check.set_defaults(run=_check)
    quarantine = commands.add_parser(
        "quarantine", parents=[common], help="give a worker no more tasks; its data is prepared elsewhere"
    )
    quarantine.add_argument("worker", metavar="WORKER", help="its name in `cerebro status`")
    quarantine.add_argument("--reason", required=True, metavar="TEXT", help="shown to all users")
    quarantine.set_defaults(run=_quarantine)
    release = commands.add_parser("release", parents=[common], help="give a worker tasks again")
    release.add_argument("worker", metavar="WORKER")
    release.set_defaults(run=_release)


def _quarantine(options: argparse.Namespace) -> int:
    from cerebro.client.connection import author
    from cerebro.contract.stored.health import QuarantineWorkerRequest
    from cerebro.state.worker_quarantine import cordon_line, registered

    kvs = cluster_client(options.home)
    if not options.reason.strip():
        raise ClusterError("--reason is empty: give a reason that other users understand")
    request = QuarantineWorkerRequest(reason=options.reason, by=author())
    kvs.quarantine_worker(options.worker, request)
    print(
        f"{options.worker} is quarantined: it returns its tasks and gets no more. Partitions that only it holds are "
        f"prepared elsewhere when a run needs them. Undo it with `cerebro release {options.worker}`."
    )
    if line := cordon_line(registered(options.worker, kvs.workers())):
        print(f"{line}.")
    return 0


def _release(options: argparse.Namespace) -> int:
    from cerebro.client.connection import author
    from cerebro.contract.stored.health import ReleaseRequest

    cluster_client(options.home).release_worker(options.worker, ReleaseRequest(by=author()))
    print(f"{options.worker} is released: it gets tasks again. Its earlier faults no longer count.")
    return 0


def _check(options: argparse.Namespace) -> int:
    from cerebro.client.connection import author
    from cerebro.contract.stored.health import CheckRequest

    kvs = cluster_client(options.home)
    names = [options.worker] if options.worker else []
    if not names:
        connected = [status for status in kvs.workers() if not status.is_lost]
        names = [s.record.worker for s in connected if "train" in s.record.kinds]
        if not names:
            raise ClusterError(
                "no training worker is connected, so none can check its machine. See `cerebro status`"
            )
    by = author()
    requested = {}
    for name in names:
        check = kvs.request_check(name, CheckRequest(reason=f"{by} asked for it", by=by)).check
        requested[name] = check.requested if check is not None else 0.0
    found = results(kvs, requested)
    for name in names:
        for line in lines(name, found.get(name)):
            print(line)
    return int(any(result is None or result.verdict for result in map(found.get, names)))


def results(
    kvs: KvsClient,
    requested: dict[str, float],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, CheckResult]:
    """Wait for the results of checks; return results that arrive in time.

    Args:
        requested: worker -> time of the request, as the store recorded it.
    """
    from cerebro.state.worker_quarantine import CHECK_TIMEOUT_S

    deadline = clock() + CHECK_TIMEOUT_S
    while True:
        found = _completed(kvs.workers_health(), requested)
        if len(found) == len(requested) or clock() >= deadline:
            return found
        sleep(_POLL_S)


def _completed(health: HealthAnswer, requested: Collection[str] | dict[str, float]) -> dict[str, CheckResult]:
    checks = {name: health.of(name).check for name in requested}
    return {
        name: check.result
        for name, check in checks.items()
        if check is not None and check.ended is not None and check.result is not None
    }


def lines(worker: str, result: CheckResult | None) -> list[str]:
    """Format the result of a check, with a line for each probe."""
    if result is None:
        return [f"{worker}: no answer in time. Is it connected? See `cerebro status`"]
    verdict = f"FAILED: {result.verdict}" if result.verdict else "nothing is wrong"
    output = [f"{worker} ({result.device or 'no device'}, {result.seconds:.1f} s): {verdict}"]
    for probe in result.probes:
        took = "not made" if probe.seconds is None else f"{probe.seconds:.2f} s"
        rate = f", {probe.rate:.1f} products/s" if probe.rate is not None else ""
        says = "; ".join(filter(None, [probe.problem, probe.note])) or "as expected"
        output.append(f"  {probe.name}: {says} ({took}{rate})")
    return output
