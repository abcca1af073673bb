"""Time and traffic of training methods on a cluster, computed from model times and network speed; nothing is measured.

All methods share these assumptions: computing takes its time on one worker, or a proportional part; a worker sends and
receives at the same time; there are no losses and no random slowness. The bytes are those of table 2 of the MOP paper,
with the size of the weights for weights and gradients, and the size of the whole state for a model that moves.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace

from cerebro.scheduling.dispatch import dispatch
from cerebro.scheduling.policies import DEFAULT_POLICY, POLICIES
from research.problems import open_shop

_COPIES = 2
"""Hops use a shared file system: a state is written and read (paper, section 4.3)."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A training configuration.

    Attributes:
        name: name for people.
        epoch_s: seconds of computing for an epoch on one worker.
        batch: rows of a batch.
        state_bytes: bytes of a checkpoint: weights and optimizer state.
        weight_bytes: bytes of the weights, and so of the gradients.
    """

    name: str
    epoch_s: float
    batch: int
    state_bytes: float
    weight_bytes: float


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Models, and the data of their epoch."""

    models: tuple[Model, ...]
    rows: int
    data_bytes: float

    def scaled(self, workers: int, hours: float) -> Workload:
        """Return the workload with all computing scaled so that task-parallel workers compute for `hours`."""
        factor = hours * 3600 / _longest_first([model.epoch_s for model in self.models], workers)
        models = tuple(replace(model, epoch_s=model.epoch_s * factor) for model in self.models)
        return replace(self, models=models)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A cluster of equal workers.

    Attributes:
        workers: number of workers.
        bytes_per_s: network speed of each worker and of the file or parameter server, in each direction. latency_s:
            latency of a message.
        memory_bytes: memory of a worker; larger data are read from its disk in each epoch.
        disk_bytes_per_s: speed of a worker's disk.
        state_s_per_byte: cost of a hop without the network: serialize, check, flush and read the state.
    """

    workers: int
    bytes_per_s: float
    latency_s: float
    memory_bytes: float
    disk_bytes_per_s: float
    state_s_per_byte: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One epoch of all models: makespan, bytes of data on each worker, bytes over the network."""

    seconds: float
    held: float
    moved: float


def hopping(work: Workload, cluster: Cluster, policy: str = DEFAULT_POLICY) -> Outcome:
    """MOP: each model trains on each worker's partition, in a schedule by one of Cerebro's policies."""
    parts = cluster.workers

    def sub_epoch_s(model: Model) -> float:
        hop = (
            model.state_bytes * (_COPIES / cluster.bytes_per_s + cluster.state_s_per_byte) + cluster.latency_s
        )
        return model.epoch_s / parts + hop

    problem = open_shop([[sub_epoch_s(model)] * parts for model in work.models])
    schedule = dispatch(problem, POLICIES[policy])
    moved = sum(_COPIES * parts * model.state_bytes for model in work.models)
    return Outcome(seconds=schedule.makespan, held=work.data_bytes / parts, moved=moved)


def task_parallel(work: Workload, cluster: Cluster) -> Outcome:
    """All data on each worker, the longest model first; reading from disk and computing overlap."""
    reads = work.data_bytes / cluster.disk_bytes_per_s if work.data_bytes > cluster.memory_bytes else 0.0
    times = [max(model.epoch_s, reads) for model in work.models]
    return Outcome(
        seconds=_longest_first(times, cluster.workers), held=work.data_bytes, moved=_delivered(work)
    )


def remote_reads(work: Workload, cluster: Cluster) -> Outcome:
    """Task-parallel training that reads all data for each model over its worker's network, from an unlimited store."""
    reads = work.data_bytes / cluster.bytes_per_s
    times = [max(model.epoch_s, reads) for model in work.models]
    moved = len(work.models) * work.data_bytes + _delivered(work)
    return Outcome(seconds=_longest_first(times, cluster.workers), held=0.0, moved=moved)


def averaging(work: Workload, cluster: Cluster) -> Outcome:
    """Bulk synchronous training, one model after another.

    Each worker trains on its partition; one node collects the weights, averages them and sends them to all.
    """
    seconds = sum(
        model.epoch_s / cluster.workers
        + 2 * (cluster.workers * model.weight_bytes / cluster.bytes_per_s + cluster.latency_s)
        for model in work.models
    )
    moved = sum(2 * cluster.workers * model.weight_bytes for model in work.models)
    return Outcome(seconds=seconds, held=work.data_bytes / cluster.workers, moved=moved)


def all_reduce(work: Workload, cluster: Cluster) -> Outcome:
    """Horovod or DDP, one model after another.

    After the backward pass, the gradients of each step go around a ring. Each worker has a full batch, so there are
    `workers` times fewer steps.
    """
    peers = cluster.workers - 1
    seconds, moved = 0.0, 0.0
    for model in work.models:
        steps = _steps(work, model) / cluster.workers
        ring_s = 2 * peers * (model.weight_bytes / cluster.workers / cluster.bytes_per_s + cluster.latency_s)
        seconds += model.epoch_s / cluster.workers + steps * ring_s
        moved += steps * 2 * peers * model.weight_bytes
    return Outcome(seconds=seconds, held=work.data_bytes / cluster.workers, moved=moved)


def parameter_server(work: Workload, cluster: Cluster) -> Outcome:
    """One asynchronous server, one model after another.

    For each batch, gradients go to the server and weights return, both at once; workers compute while others wait.
    """
    seconds, moved = 0.0, 0.0
    for model in work.models:
        steps = _steps(work, model)
        link_s = steps * (model.weight_bytes / cluster.bytes_per_s)
        alone_s = steps * (2 * model.weight_bytes / cluster.bytes_per_s + 2 * cluster.latency_s)
        seconds += max(link_s, (model.epoch_s + alone_s) / cluster.workers)
        moved += steps * 2 * model.weight_bytes
    return Outcome(seconds=seconds, held=work.data_bytes / cluster.workers, moved=moved)


def _steps(work: Workload, model: Model) -> float:
    return work.rows / model.batch


def _delivered(work: Workload) -> float:
    return sum(model.state_bytes for model in work.models)


def _longest_first(times: list[float], workers: int) -> float:
    """Return the makespan of independent jobs, the longest first, each on the first free worker."""
    busy = [0.0] * workers
    for seconds in sorted(times, reverse=True):
        heapq.heapreplace(busy, busy[0] + seconds)
    return max(busy)
