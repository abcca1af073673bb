"""Effect of the C allocator's settings (`cerebro.worker.agent.processes.allocator`) on CPU time and memory.

A perceptron, a convolutional network and an attention network train for some steps in separate processes, alternating
with and without the settings. The measure is CPU time, because the settings save page faults, which are the kernel's
work.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.figure import Figure
from cerebro.worker.agent.processes import allocator

STEPS, ROUNDS = 150, 3
BAR = 1.0
_MEMORY = 8 << 30


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(128, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.body(inputs).mean(1))
        return found


def _perceptron() -> nn.Module:
    layers = [nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10)]
    return nn.Sequential(*layers)


def _convolutional() -> nn.Module:
    first = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(64 * 64, 10))


NETWORKS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "perceptron": (_perceptron, (128, 784)),
    "convolutional": (_convolutional, (32, 3, 32, 32)),
    "attention": (_Attention, (16, 64, 128)),
}
"""Name -> factory, and the shape of a batch."""


def steps(name: str) -> dict[str, float]:
    """Train; return CPU seconds, minor faults and peak memory in MB."""
    torch.set_num_threads(1)
    make, shape = NETWORKS[name]
    network, inputs, labels = make(), torch.randn(shape), torch.arange(shape[0]) % 10
    optimizer = torch.optim.Adam(network.parameters())
    faults, began = 0, 0.0
    for number in range(10 + STEPS):
        if number == 10:  # after the warm-up
            faults, began = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.process_time()
        loss = functional.cross_entropy(network(inputs), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    seconds, used = time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF)
    return {"seconds": seconds, "faults": used.ru_minflt - faults, "peak_mb": used.ru_maxrss / 1024}


def benchmark() -> list[Figure]:
    """Measure each network."""
    bare = {name: text for name, text in os.environ.items() if name not in allocator.DECIDED_BY_USER}
    settings = {"with": bare | allocator.tuned(bare, _MEMORY), "without": bare}
    figures = []
    for name in NETWORKS:
        found: dict[str, list[dict[str, float]]] = {side: [] for side in settings}
        for _ in range(ROUNDS):
            for side, environment in settings.items():
                found[side].append(_in_process(name, environment))
        ratios = [a["seconds"] / b["seconds"] for a, b in zip(*found.values(), strict=True)]
        figures.append(
            Figure(
                what=f"C allocator of children: processor time of {STEPS} steps, {name}, against glibc's settings",
                measured=" against ".join(_summary(side) for side in found.values()),
                ratio=statistics.median(ratios),
                bar=BAR,
                sense="at most",
            )
        )
    return figures


def _summary(rounds: list[dict[str, float]]) -> str:
    middle = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
    return f"{middle['seconds']:.2f} s, {middle['faults']:,.0f} faults, {middle['peak_mb']:.0f} MB"


def _in_process(name: str, environment: dict[str, str]) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.allocator", name]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    print(json.dumps(steps(sys.argv[1])))
