"""How long methods of training take on a cluster, and what they move, from the seconds that the models compute and the
network's speed. Nothing is measured here, and nothing known of a paper.

What all methods share: computing takes the time that it takes on one worker, or its part of it; a worker sends and
receives at once; nothing is lost, nobody is slow by chance. The bytes are those of table 2 of the MOP paper, with
the size of the weights where weights or gradients are sent, and the size of the whole state where a model goes to
another worker.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace

from cerebro.scheduling.dispatch import dispatch
from cerebro.scheduling.policies import DEFAULT_POLICY, POLICIES
from cerebro.scheduling.problem import open_shop

_COPIES = 2
"""Hops go over a shared file system: a state is written and read (paper, section 4.3)."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A training configuration.

    Attributes:
        name: for people.
        epoch_s: seconds of an epoch on one worker, computing alone.
        batch: rows of a batch.
        state_bytes: of a checkpoint: weights and what the optimizer keeps.
        weight_bytes: of the weights, and so of the gradients.
    """

    name: str
    epoch_s: float
    batch: int
    state_bytes: float
    weight_bytes: float


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Models and the data that they are trained on for an epoch."""

    models: tuple[Model, ...]
    rows: int
    data_bytes: float

    def scaled(self, workers: int, hours: float) -> Workload:
        """The same with computing slowed down alike for all, so that task-parallel workers compute for so many
        hours."""
        factor = hours * 3600 / _longest_first([model.epoch_s for model in self.models], workers)
        models = tuple(replace(model, epoch_s=model.epoch_s * factor) for model in self.models)
        return replace(self, models=models)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Workers that are alike.

    Attributes:
        workers: their number.
        bytes_per_s: that each worker, and the node of the file system or of the parameters, sends and receives at
        once. latency_s: of a message.
        memory_bytes: of a worker. Data that do not fit are read from its disk in each epoch.
        disk_bytes_per_s: of a worker's disk.
        state_s_per_byte: what a hop costs besides the network: the state is laid out, checked, flushed, read.
    """

    workers: int
    bytes_per_s: float
    latency_s: float
    memory_bytes: float
    disk_bytes_per_s: float
    state_s_per_byte: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Of one epoch of all models: its makespan, bytes of data on each worker, bytes over the network."""

    seconds: float
    held: float
    moved: float


def hopping(work: Workload, cluster: Cluster, policy: str = DEFAULT_POLICY) -> Outcome:
    """MOP: each model visits each worker's partition; the schedule is made by one of Cerebro's policies."""
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
    """All data on each worker; the longest model is taken first. Reading from disk and computing overlap."""
    reads = work.data_bytes / cluster.disk_bytes_per_s if work.data_bytes > cluster.memory_bytes else 0.0
    times = [max(model.epoch_s, reads) for model in work.models]
    return Outcome(
        seconds=_longest_first(times, cluster.workers), held=work.data_bytes, moved=_delivered(work)
    )


def remote_reads(work: Workload, cluster: Cluster) -> Outcome:
    """Task-parallel without a copy on each worker: each model reads all data over its worker's network. Nothing else
    limits the store."""
    reads = work.data_bytes / cluster.bytes_per_s
    times = [max(model.epoch_s, reads) for model in work.models]
    moved = len(work.models) * work.data_bytes + _delivered(work)
    return Outcome(seconds=_longest_first(times, cluster.workers), held=0.0, moved=moved)


def averaging(work: Workload, cluster: Cluster) -> Outcome:
    """Bulk synchronous: each worker trains on its partition, one node collects the weights, averages them and sends
    them back; one model after another."""
    seconds = sum(
        model.epoch_s / cluster.workers
        + 2 * (cluster.workers * model.weight_bytes / cluster.bytes_per_s + cluster.latency_s)
        for model in work.models
    )
    moved = sum(2 * cluster.workers * model.weight_bytes for model in work.models)
    return Outcome(seconds=seconds, held=work.data_bytes / cluster.workers, moved=moved)


def all_reduce(work: Workload, cluster: Cluster) -> Outcome:
    """Horovod or DDP: the gradients of each step go around a ring, after the backward pass; each worker has a batch
    of its own, so there are `workers` times fewer steps. One model after another."""
    peers = cluster.workers - 1
    seconds, moved = 0.0, 0.0
    for model in work.models:
        steps = _steps(work, model) / cluster.workers
        ring_s = 2 * peers * (model.weight_bytes / cluster.workers / cluster.bytes_per_s + cluster.latency_s)
        seconds += model.epoch_s / cluster.workers + steps * ring_s
        moved += steps * 2 * peers * model.weight_bytes
    return Outcome(seconds=seconds, held=work.data_bytes / cluster.workers, moved=moved)


def parameter_server(work: Workload, cluster: Cluster) -> Outcome:
    """Asynchronous, one server: for each batch gradients go to it and weights come back, both at once; workers compute
    while others wait. One model after another."""
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
    """Makespan of independent jobs, the longest first to whoever is free."""
    busy = [0.0] * workers
    for seconds in sorted(times, reverse=True):
        heapq.heapreplace(busy, busy[0] + seconds)
    return max(busy)
