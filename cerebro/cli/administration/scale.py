"""``cerebro scale`` and ``cerebro remove``: more or fewer workers, also during a run.

On one machine the supervisor starts and ends workers. Elsewhere the number is a request in the store: the controller
passes it to the cluster manager, and the command waits until as many pods have registered. New workers get partitions
and work in the current run. Partitions that only removed workers held are prepared again. Most other commands get
their connection here, from `cluster_client`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cerebro.cli.parsing import amount
from cerebro.cli.text import crowd, warn
from cerebro.contract.texts import did_you_mean
from cerebro.errors import ClusterError, ConflictError, NotFoundError
from cerebro.runtime.usage.cores import available

if TYPE_CHECKING:
    from cerebro.contract.records import WorkerStatus
    from cerebro.runtime.kvs.client import KvsClient

MAX_WORKERS = 1000
ACCEPTANCE_S = 20.0
"""Seconds until the controller must accept a request; a new leader needs five."""
CONNECTED_S = 15.0
"""A worker is connected if it has reported within these seconds."""
_POLL_S = 0.5

Say = Callable[[str], None]


def register(commands: Any, common: argparse.ArgumentParser, number: Callable[[str], int]) -> None:
    """Add ``scale`` and ``remove`` to the subcommands.

    Args:
        common: parser of the options shared by all commands on a cluster.
        number: type of an argument that is a whole number from 1.
    """
    scale = commands.add_parser(
        "scale", parents=[common], help="change the number of workers, also during a run"
    )
    scale.add_argument(
        "--workers",
        type=lambda text: 0 if text == "0" else number(text),
        required=True,
        metavar="N",
        help="number of workers; 0 needs a cluster with a cluster manager",
    )
    scale.add_argument("--pause", action="store_true", help="with 0 workers: pause open runs first")
    scale.add_argument(
        "--timeout", type=amount, default=300.0, metavar="S", help="seconds to wait for them (default: 300)"
    )
    scale.set_defaults(run=run_scale)
    remove = commands.add_parser("remove", parents=[common], help="remove a worker whose disk is lost")
    remove.add_argument("worker", metavar="WORKER", help="its name in `cerebro status`")
    remove.set_defaults(run=run_remove)


def run_scale(options: argparse.Namespace) -> int:
    """Run ``cerebro scale``; return the exit status."""
    if options.workers > MAX_WORKERS:
        raise ClusterError(
            f"Cerebro runs with at most {MAX_WORKERS} workers, not {options.workers}: choose fewer"
        )
    if options.pause and options.workers:
        raise ClusterError("--pause needs `--workers 0`: with workers, runs continue without a pause")
    if options.home or not os.environ.get("CEREBRO_SERVER"):
        if not options.workers:
            raise ClusterError(
                "a cluster on one machine needs at least one worker: end the cluster with `cerebro down`"
            )
        _scale_here(options.home, options.workers, options.timeout)
    else:
        from cerebro.client.connection import author

        kvs = cluster_client(options.home)
        request_size(kvs, options.workers, by=author(), pause=options.pause)
        await_workers(kvs, options.workers, timeout_s=options.timeout, say=_say)
    _say(f"There {'is 1 worker' if options.workers == 1 else f'are {options.workers} workers'} now.")
    return 0


def run_remove(options: argparse.Namespace) -> int:
    """Run ``cerebro remove``; return the exit status."""
    kvs = cluster_client(options.home)
    for name in remove(kvs, options.worker):
        _say(f"{name} is removed.")
    _say("Partitions that only it held are prepared on another worker when a run needs them.")
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def cluster_client(home: str | None) -> KvsClient:
    """Return a client of the local cluster, or of the one in ``CEREBRO_SERVER``.

    Raises:
        ClusterError: no local cluster runs, or the other one cannot be reached.
    """
    from cerebro.client.connection import connect
    from cerebro.local import cluster
    from cerebro.runtime.kvs.client import KvsClient

    if home or not os.environ.get("CEREBRO_SERVER"):
        info = cluster.join(home)
        return KvsClient(info.kvs, info.token())
    return connect().kvs


# --- on one machine ------------------------------------------------------------------------------


def _scale_here(home: str | None, workers: int, timeout_s: float) -> None:
    from cerebro.local import cluster
    from cerebro.runtime.kvs.client import KvsClient

    info = cluster.scale(home, workers, timeout_s=timeout_s)
    if warning := crowd(workers, available()):
        warn(warning)
    present = {service.name for service in info.services}
    kvs = KvsClient(info.kvs, info.token())
    for status in kvs.workers():
        if status.record.worker not in present:
            _forget(kvs, status)


def _forget(kvs: KvsClient, status: WorkerStatus) -> bool:
    try:
        kvs.remove_worker(status.record.worker, status.record.incarnation)
    except (NotFoundError, ConflictError):
        return False  # Another user removed it, or it is connected again.
    return True


# --- in a cluster --------------------------------------------------------------------------------


def request_size(
    kvs: KvsClient, workers: int, *, by: str, pause: bool = False, timeout_s: float = ACCEPTANCE_S
) -> None:
    """Request a number of workers; return once the cluster manager has it.

    Args:
        pause: pause open runs first, for 0 workers.

    Raises:
        ConflictError: 0 workers were requested while runs are open.
        ClusterError: the request was refused, replaced by another one, or not accepted in time and then withdrawn.
    """
    from cerebro.contract.records import SizeRequest

    kvs.request_size(SizeRequest(workers=workers, by=by, pause=pause))
    deadline = time.monotonic() + timeout_s
    while (pending := kvs.size_request()) is not None:
        if pending.workers != workers:
            raise ClusterError(
                f"{pending.by or 'another user'} has requested {pending.workers} workers since. Agree on one number"
            )
        if pending.problem:
            raise ClusterError(f"{workers} workers are not possible: {pending.problem}")
        if time.monotonic() > deadline:
            try:
                kvs.withdraw_size_request(workers)
            except ConflictError:
                continue  # It was accepted or replaced just now.
            raise ClusterError(
                f"the request for {workers} workers was not answered within {timeout_s:g} s and is withdrawn. The "
                "cluster's controller does not run, or cannot reach its cluster manager: see `kubectl get pods` and "
                "the controller's log"
            )
        time.sleep(_POLL_S)


def await_workers(kvs: KvsClient, workers: int, *, timeout_s: float, say: Say) -> None:
    """Wait for a number of pods with a training worker.

    Args:
        say: receives a line when the number or the reasons change.

    Raises:
        ClusterError: not in time; the message has the reasons.
    """
    deadline = time.monotonic() + timeout_s
    last_report = -1, ""
    while (count := len(_pods(kvs))) != workers:
        pod_problems = _pod_problems(kvs) if count < workers else ""
        if (count, pod_problems) != last_report:
            say(f"{count} of {workers} workers" + (f" ({pod_problems})" if pod_problems else ""))
            last_report = count, pod_problems
        if time.monotonic() > deadline:
            raise ClusterError(_late(kvs, count, workers, timeout_s))
        time.sleep(_POLL_S)


def _pods(kvs: KvsClient) -> set[str]:
    """Return the pods with a connected training worker."""
    return {
        status.record.pod.name
        for status in kvs.workers()
        if status.record.pod and "train" in status.record.kinds and status.silent_s < CONNECTED_S
    }


def _pod_problems(kvs: KvsClient) -> str:
    """Return the cluster manager's reasons for pods that do not start."""
    return "; ".join(f"{pod}: {why}" for pod, why in sorted(kvs.worker_set_status().pods.items()))


def _late(kvs: KvsClient, count: int, workers: int, timeout_s: float) -> str:
    pod_problems = _pod_problems(kvs)
    if count > workers:
        return (
            f"there are still {count} workers instead of {workers} after {timeout_s:g} s. They continue to leave: see "
            "`kubectl get pods`"
        )
    return (
        f"{count} of {workers} workers registered within {timeout_s:g} s ({pod_problems or 'the reason is not known'})."
        " The others are used when they come: see `kubectl get pods` and `kubectl describe pod`"
    )


# --- gone for good -------------------------------------------------------------------------------


def remove(kvs: KvsClient, worker: str) -> list[str]:
    """Remove a worker and the workers on the same volume from the store; return their names. Ends no process.

    Raises:
        NotFoundError: the worker is not registered.
        ClusterError: a worker on that volume is alive.
    """
    statuses = kvs.workers()
    found = next((status.record for status in statuses if status.record.worker == worker), None)
    if found is None:
        known = [status.record.worker for status in statuses]
        shown = f"; there is: {', '.join(known) or 'none'}"
        raise NotFoundError(f"no worker {worker!r} is registered{did_you_mean(worker, known) or shown}")
    volume = found.volume or found.worker
    sharing = [s for s in statuses if (s.record.volume or s.record.worker) == volume]
    for status in sharing:
        if status.silent_s < CONNECTED_S:
            raise ClusterError(
                f"{status.record.worker} reported {status.silent_s:.0f} s ago, so it is alive: end it first, or reduce "
                "the number of workers with `cerebro scale`"
            )
    return [status.record.worker for status in sharing if _forget(kvs, status)]
