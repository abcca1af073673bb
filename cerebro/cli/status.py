"""What ``cerebro status`` says: services as the supervisor sees them, workers and experiments as the store
does.

Two sources on purpose. When the store is away, the first part still tells why.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cerebro.cli.experiment_status import load_readable
from cerebro.cli.queue import FollowedLog, cluster_json, queue_lines
from cerebro.cli.text import duration, size, table
from cerebro.contract.api import QueueAnswer
from cerebro.contract.health import HealthAnswer
from cerebro.contract.records import ExperimentSummary, Replica, WorkerRecord, WorkerStatus
from cerebro.contract.tasks import KINDS
from cerebro.errors import CerebroError, UnreadableError
from cerebro.local import processes
from cerebro.local.home import ClusterInfo, ServiceInfo
from cerebro.local.supervisor import ClusterState
from cerebro.runtime.kvs import KvsClient
from cerebro.runtime.usage.cores import crowded
from cerebro.state import ExperimentState, Run, Worker, lost_because, wording
from cerebro.state.quarantine import health_words
from cerebro.state.throughput import ThroughputMeter

_TIMEOUT_S = 3.0


def client(info: ClusterInfo) -> KvsClient:
    """A client that soon says so when the store is away."""
    return KvsClient(info.kvs, info.token(), retry_for_s=_TIMEOUT_S)


def remote_client(environment: Mapping[str, str]) -> KvsClient | None:
    """A client of the cluster that ``CEREBRO_SERVER`` names, if it names one.

    Raises:
        ClusterError, UnauthorizedError: it cannot be reached that way.
    """
    if not environment.get("CEREBRO_SERVER"):
        return None
    from cerebro.client.connection import connect

    return connect().kvs


def cluster_lines(info: ClusterInfo) -> list[str]:
    """The cluster as a whole and its services."""
    now = time.time()
    head = f"Cerebro {info.version} at {info.home}: {info.state}, for {duration(now - info.since)}"
    return [
        head,
        f"  web page     {info.dispatcher}",
        f"  TensorBoard  {info.tensorboard or 'not started'}",
        f"  JupyterLab   {info.notebook or 'not started'}",
        *_metrics_lines(info),
        "",
        *_service_lines(info, now),
    ]


def _metrics_lines(info: ClusterInfo) -> list[str]:
    """Where Prometheus finds what services tell (docs/monitoring.md)."""
    web = [f"{info.kvs}/metrics", f"{info.dispatcher}/metrics"]
    rest = [
        f"http://127.0.0.1:{port}/metrics"
        for name, port in info.ports.items()
        if name.endswith(" metrics") and name.removesuffix(" metrics") in {s.name for s in info.services}
    ]
    return [f"  metrics      {' '.join(web)} (with the token)", *(f"               {one}" for one in rest)]


def _service_lines(info: ClusterInfo, now: float) -> list[str]:
    own = ServiceInfo(
        name="supervisor",
        state=str(ClusterState.READY),
        process=info.supervisor,
        since=info.since,
        restarts=0,
        required=True,
    )
    shown = [*info.services, own]
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
class _Found:
    """What the store and the logs of open experiments tell.

    Attributes:
        states: of experiments, in a word.
        lost: workers that a log calls lost.
        logs: of experiments with an open run.
        note: on the number of workers (`Troubles.note`).
    """

    workers: Sequence[WorkerStatus]
    experiments: Sequence[ExperimentSummary]
    queue: QueueAnswer
    troubles: Mapping[str, str]
    note: str
    health: HealthAnswer
    states: Mapping[str, str]
    lost: Mapping[str, Worker]
    logs: Mapping[str, FollowedLog]
    now: float


def _found(kvs: KvsClient) -> _Found:
    workers, experiments, queue = kvs.workers(), kvs.experiments(), kvs.queued()
    lost: dict[str, Worker] = {}
    logs: dict[str, FollowedLog] = {}
    troubles = kvs.troubles()
    return _Found(
        workers=workers,
        experiments=experiments,
        queue=queue,
        troubles=troubles.pods,
        note=troubles.note,
        health=kvs.workers_health(),
        states=states_of(kvs, experiments, lost, logs),
        lost=lost,
        logs=logs,
        now=time.time(),
    )


def store_lines(kvs: KvsClient) -> list[str]:
    """Workers, experiments and the queue."""
    try:
        found = _found(kvs)
    except CerebroError as problem:
        return ["", f"Workers and experiments are not known: {problem}"]
    words = {name: worker.lost for name, worker in found.lost.items()}
    late = [f"  {found.note}"] if found.note else []
    late += [f"  {pod} does not start: {why}" for pod, why in sorted(found.troubles.items())]
    return [
        "",
        *worker_lines(found.workers, words, found.troubles, found.health),
        *late,
        "",
        *experiment_lines(found.experiments, found.states, found.now),
        "",
        *queue_lines(found.queue, found.logs, found.troubles, found.now),
    ]


def store_json(kvs: KvsClient) -> dict[str, Any]:
    """The same as one object; see `cerebro.cli.queue.cluster_json`."""
    found = _found(kvs)
    return cluster_json(
        workers=found.workers,
        experiments=found.experiments,
        states=found.states,
        queue=found.queue,
        logs=found.logs,
        troubles=found.troubles,
        health=found.health,
        now=found.now,
    )


def services_json(info: ClusterInfo) -> dict[str, Any]:
    """The cluster as a whole and its services."""
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
    troubles: Mapping[str, str] | None = None,
    health: HealthAnswer | None = None,
) -> list[str]:
    """One line per worker that ever registered.

    Args:
        words: why workers were given up, by name, as logs tell it.
        troubles: why pods do not start, by name.
        health: what is known of their machines.
    """
    held: dict[str, set[Replica]] = defaultdict(set)
    for status in workers:
        held[status.record.volume or status.record.worker] |= set(status.record.replicas)
    rows = [
        (
            status.record.worker,
            f"{duration(status.silent_s)} ago",
            f"{status.record.weight:g}",
            str(status.record.cores),
            str(len(status.record.gpus)),
            _devices(status.record),
            str(len(held[status.record.volume or status.record.worker])),
            " ".join(kind for kind in status.record.kinds if kind in KINDS),
            _doing(status, words or {}, troubles or {}, health or HealthAnswer()),
        )
        for status in sorted(workers, key=lambda status: status.record.worker)
    ]
    heads = ("WORKER", "HEARD OF", "WEIGHT", "THREADS", "GPUS", "DEVICES", "PARTITIONS", "DOES", "RUNS")
    crowds = [f"  {line}: they slow each other down, see `cerebro doctor`" for line in crowded(workers)]
    return [*table(heads, rows), *crowds] or ["  no worker has registered yet"]


def _devices(record: WorkerRecord) -> str:
    return str(max(1, len(record.devices)))


def _doing(
    status: WorkerStatus, words: Mapping[str, str], troubles: Mapping[str, str], health: HealthAnswer
) -> str:
    """What it last said that it runs holds no more of one that is lost. What is wrong with its machine goes first."""
    told = health_words(status, health)
    if health.of(status.record.worker).is_quarantined:
        return told
    if status.is_lost:
        return f"lost: {lost_because(status, words.get(status.record.worker, ''), troubles)}"
    if status.leaving:
        return f"stopping: {status.leaving}"
    return "; ".join(filter(None, [status.running or "idle", told]))


def states_of(
    kvs: KvsClient,
    experiments: Sequence[ExperimentSummary],
    lost: dict[str, Worker] | None = None,
    logs: dict[str, FollowedLog] | None = None,
) -> dict[str, str]:
    """Of each experiment the state of its runs in progress, else of its newest run, in the page's words.

    Logs are read for a few seconds at most, newest first; of an experiment whose log was not read it is only told
    whether a run is in progress.

    Args:
        lost: gets the workers that these logs say were lost, each as the log that tells of it last has it.
        logs: gets those that were read of experiments with an open run.
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


def _state_word(kvs: KvsClient, name: str, lost: dict[str, Worker], logs: dict[str, FollowedLog]) -> str:
    meter = ThroughputMeter()
    try:
        state, problem = load_readable(kvs, name, meter)
    except CerebroError:  # deleted since
        return "unreadable"
    if problem is not None:
        return "unreadable"
    for worker in state.workers.values():
        if worker.lost and (worker.name not in lost or worker.since > lost[worker.name].since):
            lost[worker.name] = worker
    if state.open_runs():
        logs[name] = FollowedLog(state=state, meter=meter)
    return ", ".join(f"{wording.run(run)} {run.id}" for run in _told_runs(state)) or "new"


def _told_runs(state: ExperimentState) -> list[Run]:
    """The open runs, else the newest one; of a test or prediction with the run before it that made what it reads."""
    if found := state.open_runs():
        return found
    newest = [*state.runs.values()][-1:]
    if not newest or not newest[0].is_evaluation:
        return newest
    return [*[run for run in state.runs.values() if not run.is_evaluation][-1:], *newest]


def experiment_lines(
    experiments: Sequence[ExperimentSummary], states: Mapping[str, str], now: float
) -> list[str]:
    """One line per experiment, newest event first."""
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
