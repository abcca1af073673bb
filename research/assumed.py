"""Models with a choice of technique, as Saturn's evaluation has them, by an assumed model of their cost.

Saturn (arXiv 2309.01226, section 5) schedules 12 models at a time, two architectures x two batch sizes x three learning
rates, on nodes of GPUs of 40 GiB. Its run times for each technique and number of GPUs are not printed, so nothing here
is measured: what the numbers show is how schedulers differ on instances of that shape. Each number that is assumed
stands in this module, and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cerebro.scheduling.problem import Problem, TimedPlan

DEVICE_GIB = 40.0
_STATE_BYTES = 16
"""Of a parameter: weights and gradients, and Adam's two moments, all in 32 bits."""
_CHECKPOINTED = 0.25
"""Share of the activations that is kept where blocks are run again in the backward pass."""
_OFFLOAD, _CHECKPOINTING, _FSDP = 2.5, 1.33, 1.06
"""Times as long as without, on as many devices."""
_LEARNING_RATES = 3
_GIB = 2.0**30


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What a model costs.

    Attributes:
        name: for people.
        parameters: how many.
        hours: of its training, on one device with memory enough.
        efficiency: of twice as many devices: speed over twice the speed.
        activations_gib: of the larger batch; of the smaller one half of it.
        half_batch: times as long with the smaller batch.
    """

    name: str
    parameters: float
    hours: float
    efficiency: float
    activations_gib: float
    half_batch: float


WORKLOADS: dict[str, tuple[Architecture, Architecture]] = {
    "txt": (
        Architecture(
            name="1.56B", parameters=1.56e9, hours=10, efficiency=0.88, activations_gib=30, half_batch=1.12
        ),
        Architecture(
            name="6.05B", parameters=6.05e9, hours=36, efficiency=0.90, activations_gib=40, half_batch=1.12
        ),
    ),
    "img": (
        Architecture(
            name="1.8B", parameters=1.8e9, hours=20, efficiency=0.90, activations_gib=40, half_batch=1.05
        ),
        Architecture(
            name="0.2B", parameters=0.2e9, hours=5, efficiency=0.72, activations_gib=16, half_batch=1.12
        ),
    ),
}

CLUSTERS: dict[str, tuple[int, ...]] = {"1x8": (8,), "4x8": (8,) * 4, "8+4": (8, 4)}
"""Devices of each node."""


def saturn(workload: str, cluster: str, *, is_hopping: bool = False) -> Problem:
    """Twelve models, each by any way that fits, on a node.

    Args:
        workload, cluster: keys of `WORKLOADS` and `CLUSTERS`.
        is_hopping: each node has its share of the data, in proportion to its devices, and each model visits all nodes.
            Otherwise every node has all data, and a model is trained on one of them, as in Saturn.
    """
    nodes = CLUSTERS[cluster]
    models = [
        (f"{architecture.name}-{'half' if is_half else 'full'}-{rate}", architecture, is_half)
        for architecture in WORKLOADS[workload]
        for is_half in (False, True)
        for rate in range(_LEARNING_RATES)
    ]
    everywhere = tuple(range(len(nodes)))
    return Problem(
        models=tuple(name for name, _, _ in models),
        workers=tuple(f"node-{number}" for number in everywhere),
        gpus=nodes,
        parallel_plans=tuple(
            tuple(tuple(parallel_plans(architecture, devices, is_half=is_half)) for devices in nodes)
            for _, architecture, is_half in models
        ),
        holders=tuple((node,) for node in everywhere) if is_hopping else (everywhere,),
        sizes=tuple(devices / sum(nodes) for devices in nodes) if is_hopping else (1.0,),
    )


def parallel_plans(architecture: Architecture, devices: int, *, is_half: bool) -> Iterator[TimedPlan]:
    """The ways that fit, the number of devices doubling, with the seconds that all of the data takes."""
    state = architecture.parameters * _STATE_BYTES / _GIB
    kept = architecture.activations_gib * (0.5 if is_half else 1.0)
    hours = architecture.hours * (architecture.half_batch if is_half else 1.0)
    for doublings in range(int(math.log2(devices)) + 1):
        gpus = 2**doublings
        alone = hours / (gpus * architecture.efficiency**doublings)
        for technique, memory, factor in _techniques(state, kept, gpus):
            if memory <= DEVICE_GIB:
                yield TimedPlan(gpus=gpus, seconds=float(round(3600 * alone * factor)), technique=technique)


def _techniques(state: float, kept: float, gpus: int) -> Sequence[tuple[str, float, float]]:
    """(name, GiB of each device, times as long)."""
    few = kept * _CHECKPOINTED
    if gpus == 1:
        return (
            ("single", state + kept, 1.0),
            ("checkpointing", state + few, _CHECKPOINTING),
            ("offload", kept, _OFFLOAD),
            ("offload+checkpointing", few, _OFFLOAD * _CHECKPOINTING),
        )
    return (
        ("ddp", state + kept / gpus, 1.0),
        ("fsdp", (state + kept) / gpus, _FSDP),
        ("ddp+checkpointing", state + few / gpus, _CHECKPOINTING),
        ("fsdp+checkpointing", (state + few) / gpus, _FSDP * _CHECKPOINTING),
    )
