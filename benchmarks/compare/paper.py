"""The two end-to-end workloads of the MOP paper (Nakandala et al., PVLDB 2020, section 6.1) for the simulation.

The paper prints rows, sizes of data and models, batch sizes, the cluster (tables 4 and 5, section 6), and each system's
makespan of an epoch (figure 7). It does not print a model's time by batch size. For ImageNet, published rates of the
two networks on the paper's GPU replace it; for Criteo, this machine measures batches of a network of that size. Both
give the ratios of the models' times. One number, the task-parallel makespan, sets the scale; all others are
predictions.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import functional

from benchmarks.compare.simulation import Cluster, Model, Workload
from benchmarks.compare.task import adam

MIB, GB = float(1 << 20), 1e9
WORKERS = 8
_ADAM = 3
"""Factor of a serialized model: weights and Adam's two moments. 293 MiB are three times ResNet50's weights."""

PRINTED: Mapping[str, Mapping[str, float]] = {
    "ImageNet": {
        "task-parallel": 1.72,
        "hopping": 1.77,
        "averaging": 1.97,
        "all-reduce": 5.42,
        "parameter-server": 19.00,
    },
    "Criteo": {
        "task-parallel": 3.95,
        "hopping": 3.40,
        "averaging": 3.84,
        "all-reduce": 14.06,
        "parameter-server": 28.80,
    },
}
"""Hours of an epoch in figure 7: Celery's best schedule, Cerebro, TF Model Averaging, Horovod, TF PS Async."""

_IMAGES_PER_S = {
    ("VGG16", 32): 144.0,
    ("VGG16", 256): 154.0,
    ("ResNet50", 32): 195.0,
    ("ResNet50", 256): 219.0,
}
"""Images per second of training on one P100, by TensorFlow's benchmarks (May 2017, NVIDIA DGX-1, synthetic 224 x 224).

These have batches of 32 and 64; the latter replace the paper's 256.
"""
_IMAGE_MIB = {"VGG16": 792, "ResNet50": 293}
_CRITEO_MIB = 179
CRITEO_BATCHES = (32, 64, 256, 512)
_HIDDEN = (1000, 500)


def cluster(state_s_per_byte: float) -> Cluster:
    """Return the paper's cluster: 10 Gbit/s, 192 GB of memory. The disk's speed is assumed."""
    return Cluster(
        workers=WORKERS,
        bytes_per_s=1.25 * GB,
        latency_s=1e-4,
        memory_bytes=192 * GB,
        disk_bytes_per_s=0.15 * GB,
        state_s_per_byte=state_s_per_byte,
    )


def imagenet() -> Workload:
    """Return two networks x batches of 32 and 256 x 4 other settings."""
    rows = 1_200_000
    models = tuple(
        _model(name, rows / rate, batch, _IMAGE_MIB[name])
        for (name, batch), rate in _IMAGES_PER_S.items()
        for _ in range(4)
    )
    return Workload(models=models, rows=rows, data_bytes=250 * GB).scaled(
        WORKERS, PRINTED["ImageNet"]["task-parallel"]
    )


def criteo(batch_s: Mapping[int, float]) -> Workload:
    """Return one network x four batch sizes x 4 other settings.

    Args:
        batch_s: size -> seconds of a batch, see `measure_batches`.
    """
    rows = 100_000_000
    models = tuple(
        _model("MLP", rows / batch * batch_s[batch], batch, _CRITEO_MIB)
        for batch in CRITEO_BATCHES
        for _ in range(4)
    )
    return Workload(models=models, rows=rows, data_bytes=400 * GB).scaled(
        WORKERS, PRINTED["Criteo"]["task-parallel"]
    )


def measure_batches(rounds: int = 12) -> dict[int, float]:
    """Return batch size -> minimum seconds of a training step of Criteo's network on all cores.

    The input width gives the model 179 MiB with Adam's moments.
    """
    first, second = _HIDDEN
    width = round(_CRITEO_MIB * MIB / 4 / _ADAM / first) - second
    network = nn.Sequential(
        *(nn.Linear(width, first), nn.ReLU()), *(nn.Linear(first, second), nn.ReLU()), nn.Linear(second, 2)
    )
    optimizer = adam(network.parameters(), 0.001)
    found = {}
    for size in CRITEO_BATCHES:
        inputs, labels = torch.rand(size, width), torch.arange(size) % 2
        taken = []
        for _ in range(rounds + 1):
            began = time.monotonic()
            optimizer.zero_grad()
            functional.cross_entropy(network(inputs), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            taken.append(time.monotonic() - began)
        found[size] = min(taken[1:])
    return found


def _model(name: str, epoch_s: float, batch: int, mib: float) -> Model:
    state = mib * MIB
    return Model(name=name, epoch_s=epoch_s, batch=batch, state_bytes=state, weight_bytes=state / _ADAM)
