"""``cerebro check``, ``cerebro quarantine`` and ``cerebro release``: workers' machines."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from cerebro.cli.scale import cluster_client
from cerebro.errors import ClusterError

if TYPE_CHECKING:
    from cerebro.contract.health import CheckResult, HealthAnswer
    from cerebro.runtime.kvs import KvsClient

_LOOK_AGAIN_S = 0.5


def register(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add them to the subcommands of ``cerebro``.

    Args:
        common: parser of the options that all commands on a local cluster have.
    """
    check = commands.add_parser(
        "check", parents=[common], help="have workers check their machines: arithmetic, memory, volumes"
    )
    check.add_argument(
        "worker", metavar="WORKER", nargs="?", help="its name, see `cerebro status` (default: all that train)"
    )
    check.set_defaults(run=_check)
    quarantine = commands.add_parser(
        "quarantine", parents=[common], help="give a worker nothing more; what it holds is made elsewhere"
    )
    quarantine.add_argument("worker", metavar="WORKER", help="its name, see `cerebro status`")
    quarantine.add_argument("--reason", required=True, metavar="TEXT", help="for those who wonder why")
    quarantine.set_defaults(run=_quarantine)
    release = commands.add_parser("release", parents=[common], help="give a worker tasks again")
    release.add_argument("worker", metavar="WORKER")
    release.set_defaults(run=_release)


def _quarantine(options: argparse.Namespace) -> int:
    from cerebro.client.session import author
    from cerebro.contract.health import QuarantineWorkerRequest
    from cerebro.state.quarantine import cordon_line, found

    kvs = cluster_client(options.home)
    if not options.reason.strip():
        raise ClusterError("--reason is empty: say why, for those who wonder")
    request = QuarantineWorkerRequest(reason=options.reason, by=author())
    kvs.quarantine_worker(options.worker, request)
    print(
        f"{options.worker} is quarantined: it gives back what it runs and is given nothing more. What only it holds is "
        f"made elsewhere when a run needs it. `cerebro release {options.worker}` ends that."
    )
    if line := cordon_line(found(options.worker, kvs.workers())):
        print(f"{line}.")
    return 0


def _release(options: argparse.Namespace) -> int:
    from cerebro.client.session import author
    from cerebro.contract.health import ReleaseRequest

    cluster_client(options.home).release_worker(options.worker, ReleaseRequest(by=author()))
    print(
        f"{options.worker} is released: it is given tasks again. What was seen of it until now counts no more."
    )
    return 0


def _check(options: argparse.Namespace) -> int:
    from cerebro.client.session import author
    from cerebro.contract.health import CheckRequest

    kvs = cluster_client(options.home)
    names = [options.worker] if options.worker else []
    if not names:
        here = [status for status in kvs.workers() if not status.is_lost]
        names = [s.record.worker for s in here if "train" in s.record.kinds]
        if not names:
            raise ClusterError("no worker is there that can check its machine: see `cerebro status`")
    by = author()
    asked = {}
    for name in names:
        check = kvs.ask_check(name, CheckRequest(reason=f"{by} asked for it", by=by)).check
        asked[name] = check.asked if check is not None else 0.0
    found = results(kvs, asked)
    for name in names:
        for line in lines(name, found.get(name)):
            print(line)
    return int(any(result is None or result.verdict for result in map(found.get, names)))


def results(
    kvs: KvsClient,
    asked: dict[str, float],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, CheckResult]:
    """What workers have found, of those that tell it in time.

    Args:
        asked: worker -> when its check was asked for, as the store keeps it.
    """
    from cerebro.state.quarantine import CHECK_S

    deadline = clock() + CHECK_S
    while True:
        found = _told(kvs.workers_health(), asked)
        if len(found) == len(asked) or clock() >= deadline:
            return found
        sleep(_LOOK_AGAIN_S)


def _told(health: HealthAnswer, asked: Collection[str] | dict[str, float]) -> dict[str, CheckResult]:
    checks = {name: health.of(name).check for name in asked}
    return {
        name: check.result
        for name, check in checks.items()
        if check is not None and check.ended is not None and check.result is not None
    }


def lines(worker: str, result: CheckResult | None) -> list[str]:
    """A check for people: what was looked at, how long it took, and what is wrong."""
    if result is None:
        return [f"{worker}: has not answered in time. Is it there? See `cerebro status`"]
    verdict = f"FAILED: {result.verdict}" if result.verdict else "nothing is wrong"
    told = [f"{worker} ({result.device or 'no device'}, {result.seconds:.1f} s): {verdict}"]
    for probe in result.probes:
        took = "not made" if probe.seconds is None else f"{probe.seconds:.2f} s"
        rate = f", {probe.rate:.1f} products/s" if probe.rate is not None else ""
        says = "; ".join(filter(None, [probe.problem, probe.told])) or "as expected"
        told.append(f"  {probe.name}: {says} ({took}{rate})")
    return told
