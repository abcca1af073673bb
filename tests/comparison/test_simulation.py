"""Training methods simulated on a cluster (`benchmarks.compare.simulation`)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.compare import paper, simulation
from benchmarks.compare.simulation import Cluster, Model, Workload

CLUSTER = Cluster(
    workers=4,
    bytes_per_s=1e9,
    latency_s=1e-4,
    memory_bytes=1e9,
    disk_bytes_per_s=1e8,
    state_s_per_byte=1e-9,
)
METHODS = (
    simulation.hopping,
    simulation.task_parallel,
    simulation.remote_reads,
    simulation.averaging,
    simulation.all_reduce,
    simulation.parameter_server,
)


def model(epoch_s: float, megabytes: float, batch: int) -> Model:
    size = megabytes * 1e6
    return Model(name="m", epoch_s=epoch_s, batch=batch, state_bytes=3 * size, weight_bytes=size)


MODELS = st.builds(model, st.floats(1, 1e4), st.floats(0, 500), st.sampled_from((32, 256)))
WORKLOADS = st.builds(
    Workload,
    models=st.lists(MODELS, min_size=1, max_size=8).map(tuple),
    rows=st.just(100_000),
    data_bytes=st.floats(1e6, 1e11),
)


@settings(max_examples=50)
@given(st.integers(4, 10), st.floats(1, 1e4), st.floats(0, 500))
def test_equal_models_hop_without_a_wait(models: int, epoch_s: float, megabytes: float) -> None:
    """With enough models each worker is always busy, so the makespan is the work of one worker."""
    one = model(epoch_s, megabytes, 32)
    work = Workload(models=(one,) * models, rows=1000, data_bytes=1e6)
    hop_s = one.state_bytes * (2 / CLUSTER.bytes_per_s + CLUSTER.state_s_per_byte) + CLUSTER.latency_s
    found = simulation.hopping(work, CLUSTER)
    assert found.seconds == pytest.approx(models * (epoch_s / CLUSTER.workers + hop_s))
    assert found.moved == pytest.approx(2 * models * CLUSTER.workers * one.state_bytes)


@settings(max_examples=50)
@given(WORKLOADS)
def test_no_method_is_faster_than_all_workers_computing(work: Workload) -> None:
    """Compute time over all workers is a lower bound, and a faster network slows down no method."""
    faster = replace(CLUSTER, bytes_per_s=10 * CLUSTER.bytes_per_s)
    for method in METHODS:
        seconds = method(work, CLUSTER).seconds
        assert seconds >= sum(each.epoch_s for each in work.models) / CLUSTER.workers * (1 - 1e-9)
        assert method(work, faster).seconds <= seconds * (1 + 1e-9)


@settings(max_examples=50)
@given(WORKLOADS)
def test_sending_per_batch_moves_the_most_bytes(work: Workload) -> None:
    """Gradients per batch exceed weights per epoch; only task parallelism stores all data on each worker."""
    averaged, reduced = simulation.averaging(work, CLUSTER), simulation.all_reduce(work, CLUSTER)
    assert simulation.parameter_server(work, CLUSTER).moved >= reduced.moved >= averaged.moved
    assert simulation.task_parallel(work, CLUSTER).held == work.data_bytes
    assert simulation.hopping(work, CLUSTER).held == averaged.held == work.data_bytes / CLUSTER.workers


def test_the_scale_reproduces_the_printed_task_parallel_time() -> None:
    """Task-parallel compute time equals the printed scale if no data is read from disk."""
    fast = replace(paper.cluster(1e-9), disk_bytes_per_s=1e12)
    for name, work in (
        ("ImageNet", paper.imagenet()),
        ("Criteo", paper.criteo(dict.fromkeys(paper.CRITEO_BATCHES, 0.1))),
    ):
        hours = simulation.task_parallel(work, fast).seconds / 3600
        assert hours == pytest.approx(paper.PRINTED[name]["task-parallel"])
