"""Saturn's models with a choice of technique, on an assumed cost model.

Saturn (arXiv 2309.01226, section 5) schedules 12 models at a time, two architectures x two batch sizes x three learning
rates, on nodes of GPUs of 40 GiB. It does not print its run times per technique and number of GPUs, so nothing here is
measured: the numbers compare schedulers on instances of that shape. This module contains all assumed numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cerebro.scheduling.problem import Problem, TimedPlan

DEVICE_GIB = 40.0
_STATE_BYTES = 16
"""Bytes per parameter: weights, gradients and Adam's two moments, all in 32 bits."""
_CHECKPOINTED = 0.25
"""Share of the activations kept if blocks are recomputed in the backward pass."""
_OFFLOAD, _CHECKPOINTING, _FSDP = 2.5, 1.33, 1.06
"""Time factors of the techniques on the same number of devices."""
_LEARNING_RATES = 3
_GIB = 2.0**30


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Cost of a model.

    Attributes:
        name: name for people.
        parameters: number of parameters.
        hours: training time on one device with enough memory.
        efficiency: speed on twice as many devices, divided by twice the speed.
        activations_gib: activations of the larger batch; the smaller one takes half.
        half_batch: time factor of the smaller batch.
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
"""Number of devices of each node."""


def saturn(workload: str, cluster: str, *, is_hopping: bool = False) -> Problem:
    """Return the problem of twelve models, each with every parallel plan that fits a node.

    Args:
        workload, cluster: keys of `WORKLOADS` and `CLUSTERS`.
        is_hopping: True to share the data among the nodes in proportion to their devices, so each model trains on all
            nodes. Otherwise every node has all data and a model trains on one node, as in Saturn.
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
    """Yield the plans that fit, on 1, 2, 4 and more devices, with their seconds for the whole data."""
    state = architecture.parameters * _STATE_BYTES / _GIB
    activations = architecture.activations_gib * (0.5 if is_half else 1.0)
    hours = architecture.hours * (architecture.half_batch if is_half else 1.0)
    for doublings in range(int(math.log2(devices)) + 1):
        gpus = 2**doublings
        alone = hours / (gpus * architecture.efficiency**doublings)
        for technique, memory, factor in _techniques(state, activations, gpus):
            if memory <= DEVICE_GIB:
                yield TimedPlan(gpus=gpus, seconds=float(round(3600 * alone * factor)), technique=technique)


def _techniques(state: float, activations: float, gpus: int) -> Sequence[tuple[str, float, float]]:
    """Return (name, GiB per device, time factor) of each technique."""
    few = activations * _CHECKPOINTED
    if gpus == 1:
        return (
            ("single", state + activations, 1.0),
            ("checkpointing", state + few, _CHECKPOINTING),
            ("offload", activations, _OFFLOAD),
            ("offload+checkpointing", few, _OFFLOAD * _CHECKPOINTING),
        )
    return (
        ("ddp", state + activations / gpus, 1.0),
        ("fsdp", (state + activations) / gpus, _FSDP),
        ("ddp+checkpointing", state + few / gpus, _CHECKPOINTING),
        ("fsdp+checkpointing", (state + few) / gpus, _FSDP * _CHECKPOINTING),
    )
