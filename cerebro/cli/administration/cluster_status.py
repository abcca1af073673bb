"""Output of ``cerebro status`` without an experiment: the services of a local cluster, workers, experiments, the queue.

`cerebro.cli.administration.local` prints it; `cerebro doctor` uses the two functions that connect. Services come from
the supervisor's file, the rest from the store and the logs. If the store does not answer within 3 s, the services
are still shown. The output for one experiment is in `cerebro.cli.experiments.status`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cerebro.cli.administration.queue import ExperimentLog, cluster_json, queue_lines
from cerebro.cli.experiments.status import load_readable
from cerebro.cli.text import detail, duration, size, table
from cerebro.contract.records import ExperimentSummary, Replica, WorkerRecord, WorkerStatus
from cerebro.contract.rest.api import QueueAnswer
from cerebro.contract.stored.health import HealthAnswer
from cerebro.contract.tasks.bodies import KINDS
from cerebro.errors import CerebroError, UnreadableError
from cerebro.local.home import ClusterInfo, ServiceInfo
from cerebro.local.supervision import processes
from cerebro.local.supervision.supervisor import ClusterState
from cerebro.runtime.kvs.client import KvsClient
from cerebro.runtime.usage.cores import crowded
from cerebro.state import ExperimentState, Run, Worker, lost_because
from cerebro.state.reports import state_words
from cerebro.state.reports.throughput import ThroughputMeter
from cerebro.state.worker_quarantine import health_words

_TIMEOUT_S = 3.0
"""Seconds to retry calls to the store, and seconds to read logs."""


def client(info: ClusterInfo) -> KvsClient:
    """Return a client that fails quickly if the store does not answer."""
    return KvsClient(info.kvs, info.token(), retry_for_s=_TIMEOUT_S)


def remote_client(environment: Mapping[str, str]) -> KvsClient | None:
    """Return a client of the cluster in ``CEREBRO_SERVER``, or `None`.

    Raises:
        ClusterError, UnauthorizedError: the cluster cannot be reached.
    """
    if not environment.get("CEREBRO_SERVER"):
        return None
    from cerebro.client.connection import connect

    return connect().kvs


def cluster_lines(info: ClusterInfo) -> list[str]:
    """Format the local cluster and its services."""
    now = time.time()
    head = f"Cerebro {info.version} at {info.home}: {info.state}, for {duration(now - info.since)}"
    return [
        head,
        detail("web page", info.dispatcher),
        detail("TensorBoard", info.tensorboard or "not started"),
        detail("JupyterLab", info.notebook or "not started"),
        *_metrics_lines(info),
        "",
        *_service_lines(info, now),
    ]


def _metrics_lines(info: ClusterInfo) -> list[str]:
    """Format the addresses for Prometheus (docs/monitoring.md)."""
    web = [f"{info.kvs}/metrics", f"{info.dispatcher}/metrics"]
    rest = [
        f"http://127.0.0.1:{port}/metrics"
        for name, port in info.ports.items()
        if name.endswith(" metrics") and name.removesuffix(" metrics") in {s.name for s in info.services}
    ]
    return [detail("metrics", f"{' '.join(web)} (with the token)"), *(detail("", one) for one in rest)]


def _service_lines(info: ClusterInfo, now: float) -> list[str]:
    supervisor = ServiceInfo(
        name="supervisor",
        state=str(ClusterState.READY),
        process=info.supervisor,
        since=info.since,
        restarts=0,
        required=True,
    )
    shown = [*info.services, supervisor]
    memory = processes.resident_bytes(service.process.pid for service in shown if service.process)
    rows = [_service_row(service, memory, now) for service in shown]
    total = size(sum(memory.values()))
    return [
        *table(("SERVICE", "STATE", "PID", "MEMORY", "UPTIME", "RESTARTS", ""), rows),
        f"  {total} resident in all",
    ]


def _service_row(service: ServiceInfo, memory: dict[int, int], now: float) -> tuple[str, ...]:
    process = service.process
    return (
        service.name,
        service.state,
        str(process.pid) if process else "-",
        size(memory[process.pid]) if process else "-",
        duration(now - service.since) if process else "-",
        str(service.restarts),
        service.problem,
    )


@dataclass(frozen=True, kw_only=True)
class _StoreStatus:
    """Status in the store and in the logs of open experiments.

    Attributes:
        states: experiment -> state, in a word.
        lost: worker -> its state in the log that lost it.
        logs: experiment with an open run -> its log.
        note: note on the number of workers (`WorkerSetStatus.note`).
    """

    workers: Sequence[WorkerStatus]
    experiments: Sequence[ExperimentSummary]
    queue: QueueAnswer
    pod_problems: Mapping[str, str]
    note: str
    health: HealthAnswer
    states: Mapping[str, str]
    lost: Mapping[str, Worker]
    logs: Mapping[str, ExperimentLog]
    now: float


def _store_status(kvs: KvsClient) -> _StoreStatus:
    workers, experiments, queue = kvs.workers(), kvs.experiments(), kvs.queued()
    lost: dict[str, Worker] = {}
    logs: dict[str, ExperimentLog] = {}
    status = kvs.worker_set_status()
    return _StoreStatus(
        workers=workers,
        experiments=experiments,
        queue=queue,
        pod_problems=status.pods,
        note=status.note,
        health=kvs.workers_health(),
        states=states_of(kvs, experiments, lost, logs),
        lost=lost,
        logs=logs,
        now=time.time(),
    )


def store_lines(kvs: KvsClient) -> list[str]:
    """Format workers, experiments and the queue."""
    try:
        found = _store_status(kvs)
    except CerebroError as problem:
        return ["", f"Workers and experiments are not known: {problem}"]
    words = {name: worker.lost for name, worker in found.lost.items()}
    late = [f"  {found.note}"] if found.note else []
    late += [f"  {pod} does not start: {why}" for pod, why in sorted(found.pod_problems.items())]
    return [
        "",
        *worker_lines(found.workers, words, found.pod_problems, found.health),
        *late,
        "",
        *experiment_lines(found.experiments, found.states, found.now),
        "",
        *queue_lines(found.queue, found.logs, found.pod_problems, found.now),
    ]


def store_json(kvs: KvsClient) -> dict[str, Any]:
    """Return workers, experiments and the queue; see `cerebro.cli.administration.queue.cluster_json`."""
    found = _store_status(kvs)
    return cluster_json(
        workers=found.workers,
        experiments=found.experiments,
        states=found.states,
        queue=found.queue,
        logs=found.logs,
        pod_problems=found.pod_problems,
        health=found.health,
        now=found.now,
    )


def services_json(info: ClusterInfo) -> dict[str, Any]:
    """Return the local cluster and its services as an object."""
    return {
        "home": str(info.home),
        "version": info.version,
        "state": str(info.state),
        "page": info.dispatcher,
        "services": [
            {"name": each.name, "state": str(each.state), "restarts": each.restarts, "problem": each.problem}
            for each in info.services
        ],
    }


def worker_lines(
    workers: Sequence[WorkerStatus],
    words: Mapping[str, str] | None = None,
    pod_problems: Mapping[str, str] | None = None,
    health: HealthAnswer | None = None,
) -> list[str]:
    """Format one line for each registered worker.

    Args:
        words: worker -> reason of its loss, from the logs.
        pod_problems: pod -> reason why it does not start.
        health: health of the workers' machines.
    """
    replicas: dict[str, set[Replica]] = defaultdict(set)
    for status in workers:
        replicas[status.record.volume or status.record.worker] |= set(status.record.replicas)
    known = health or HealthAnswer()
    machines = health_words(workers, known, time.time())
    rows = [
        (
            status.record.worker,
            f"{duration(status.silent_s)} ago",
            f"{status.record.weight:g}",
            str(status.record.cores),
            str(len(status.record.gpus)),
            _devices(status.record),
            str(len(replicas[status.record.volume or status.record.worker])),
            " ".join(kind for kind in status.record.kinds if kind in KINDS),
            _doing(status, words or {}, pod_problems or {}, known, machines[status.record.worker]),
        )
        for status in sorted(workers, key=lambda status: status.record.worker)
    ]
    heads = (
        "WORKER",
        "LAST REPORT",
        "WEIGHT",
        "THREADS",
        "GPUS",
        "DEVICES",
        "PARTITIONS",
        "TASK KINDS",
        "RUNS",
    )
    crowds = [f"  {line}: they slow each other down, see `cerebro doctor`" for line in crowded(workers)]
    return [*table(heads, rows), *crowds] or ["  no worker has registered yet"]


def _devices(record: WorkerRecord) -> str:
    return str(max(1, len(record.devices)))


def _doing(
    status: WorkerStatus,
    words: Mapping[str, str],
    pod_problems: Mapping[str, str],
    health: HealthAnswer,
    machine: str,
) -> str:
    """Describe a worker: quarantine first, then loss; a lost worker's last task is obsolete."""
    if health.of(status.record.worker).is_quarantined:
        return machine
    if status.is_lost:
        return f"lost: {lost_because(status, words.get(status.record.worker, ''), pod_problems)}"
    if status.leaving:
        return f"stopping: {status.leaving}"
    return "; ".join(filter(None, [status.running or "idle", machine]))


def states_of(
    kvs: KvsClient,
    experiments: Sequence[ExperimentSummary],
    lost: dict[str, Worker] | None = None,
    logs: dict[str, ExperimentLog] | None = None,
) -> dict[str, str]:
    """Return the state of each experiment's open runs, or of its newest run, in the page's words.

    Logs are read for three seconds, newest first. For experiments with unread logs only open runs are known.

    Args:
        lost: receives lost workers, each with its newest state.
        logs: receives the logs of experiments with an open run.
    """
    deadline, found = time.monotonic() + _TIMEOUT_S, {}
    for summary in experiments:
        name = summary.experiment.name
        if summary.unreadable:
            found[name] = "unreadable"
        elif not summary.last_seq:
            found[name] = "new"
        elif time.monotonic() > deadline:
            found[name] = f"in progress: {', '.join(summary.open_runs)}" if summary.open_runs else "ended"
        else:
            found[name] = _state_word(kvs, name, {} if lost is None else lost, {} if logs is None else logs)
    return found


def _state_word(kvs: KvsClient, name: str, lost: dict[str, Worker], logs: dict[str, ExperimentLog]) -> str:
    meter = ThroughputMeter()
    try:
        state, problem = load_readable(kvs, name, meter)
    except CerebroError:  # It was deleted just now.
        return "unreadable"
    if problem is not None:
        return "unreadable"
    for worker in state.workers.values():
        if worker.lost and (worker.name not in lost or worker.since > lost[worker.name].since):
            lost[worker.name] = worker
    if state.open_runs():
        logs[name] = ExperimentLog(state=state, meter=meter)
    return ", ".join(f"{state_words.run(run)} {run.id}" for run in _shown_runs(state)) or "new"


def _shown_runs(state: ExperimentState) -> list[Run]:
    """Return the open runs, or the newest one; before a test or prediction also its last fit or ETL run."""
    if found := state.open_runs():
        return found
    newest = [*state.runs.values()][-1:]
    if not newest or not newest[0].is_evaluation:
        return newest
    return [*[run for run in state.runs.values() if not run.is_evaluation][-1:], *newest]


def experiment_lines(
    experiments: Sequence[ExperimentSummary], states: Mapping[str, str], now: float
) -> list[str]:
    """Format one line for each experiment, newest event first."""
    rows = [
        (
            summary.experiment.name,
            "being deleted"
            if summary.is_deleting
            else states[summary.experiment.name] + (", archived" if summary.is_archived else ""),
            f"{duration(now - summary.last_event)} ago" if summary.last_seq else "-",
            summary.experiment.author or "-",
        )
        for summary in experiments
    ]
    lines = table(("EXPERIMENT", "STATE", "LAST EVENT", "AUTHOR"), rows) or ["  no experiments yet"]
    for summary in experiments:
        if (found := summary.unreadable) and not summary.is_deleting:
            lines += ["", f"  {UnreadableError.for_event(summary.experiment.name, found.seq, found.reason)}."]
    return lines
