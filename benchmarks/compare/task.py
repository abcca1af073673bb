"""The common part of all methods: rows, network, optimizer, training step and accuracy.

Needs only torch and numpy, because Ray Tune's environment has no Cerebro.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

FEATURES, CLASSES, BATCH, WORKERS = 784, 10, 128, 2
RATES = (0.0001, 0.0002, 0.0003, 0.0005, 0.0007, 0.001, 0.0015, 0.002)
"""Learning rates, one for each model."""
HELD_OUT = 4_000
"""Rows excluded from training, numbered after the others."""
SPLITS = ("train", "valid")
_KINDS, _DISTANCE = 6, 7.5
"""Clouds of rows per class, and the distance of their centres from the origin; a row's noise is 1.

So classes overlap a little, and no line separates them.
"""

Array = np.ndarray[Any, np.dtype[np.float32]]


# --- rows ---------------------------------------------------------------------------------------


def row(number: int) -> Array:
    """Return a row's inputs, shape (`FEATURES`,), drawn from its number, so every method gets the same."""
    draw = np.random.default_rng(number)
    noise: Array = draw.standard_normal(FEATURES, np.float32)
    centre: Array = _centres()[label(number), draw.integers(_KINDS)]
    return noise + centre


def label(number: int) -> int:
    """Return the row's class."""
    return number % CLASSES


@cache
def _centres() -> Array:
    found: Array = np.random.default_rng([0, 0]).standard_normal((CLASSES, _KINDS, FEATURES), np.float32)
    found *= _DISTANCE / np.linalg.norm(found, axis=-1, keepdims=True)
    return found


def numbers(split: str, rows: int) -> range:
    """Return the row numbers of a split, for a number of training rows."""
    return range(rows) if split == "train" else range(rows, rows + HELD_OUT)


def write(folder: Path, rows: int) -> None:
    """Write both splits as NumPy files, for methods without preprocessing."""
    for split in SPLITS:
        chosen = numbers(split, rows)
        np.save(folder / f"{split}-inputs.npy", np.stack([row(number) for number in chosen]))
        np.save(folder / f"{split}-labels.npy", np.array([label(number) for number in chosen]))


class Rows:
    """Mapped inputs of shape (rows, `FEATURES`) and labels of shape (rows,); only the rows of a batch are copied."""

    def __init__(self, inputs: Any, labels: Any) -> None:
        self.inputs, self.labels = torch.from_numpy(inputs), torch.from_numpy(labels)

    @classmethod
    def load(cls, folder: str, split: str, part: int = 0, parts: int = 1) -> Rows:
        """Map a split's rows, or one of `parts` equal parts."""
        arrays = (
            np.load(Path(folder) / f"{split}-{name}.npy", mmap_mode="c") for name in ("inputs", "labels")
        )
        inputs, labels = (
            array[len(array) * part // parts : len(array) * (part + 1) // parts] for array in arrays
        )
        return cls(inputs, labels)

    def batches(self, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield all rows in random order."""
        for chosen in torch.split(torch.randperm(len(self.labels)), size):
            yield self.inputs[chosen], self.labels[chosen]


# --- training -----------------------------------------------------------------------------------


def network() -> nn.Module:
    """Return the perceptron that all models use."""
    return nn.Sequential(
        *(nn.Linear(FEATURES, 1024), nn.ReLU()),
        *(nn.Linear(1024, 512), nn.ReLU()),
        nn.Linear(512, CLASSES),
    )


def adam(parameters: Iterable[torch.Tensor], rate: float) -> torch.optim.Adam:
    """Return a fused Adam, the fastest of torch's three implementations, on a CPU too."""
    return torch.optim.Adam(parameters, lr=rate, fused=True)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Any, labels: Any) -> torch.Tensor:
    """Train on one batch and return its loss."""
    loss = functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.detach()


def epoch(model: nn.Module, optimizer: Any, rows: Rows, batch: int = BATCH) -> None:
    """Make one pass over the rows in random order."""
    for inputs, labels in rows.batches(batch):
        step(model, optimizer, inputs, labels)


@torch.no_grad()
def correct(model: nn.Module, rows: Rows) -> int:
    """Return the number of correctly classified rows."""
    pairs = zip(torch.split(rows.inputs, 1000), torch.split(rows.labels, 1000), strict=True)
    return sum(int((model(inputs).argmax(1) == labels).sum()) for inputs, labels in pairs)


# --- cost ----------------------------------------------------------------------------------------

_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+ *(.*)$")
_ACKNOWLEDGED = 120
"""Offset of `tcpi_bytes_acked` in the kernel's `tcp_info` (linux/tcp.h)."""


def held(pattern: str, smaps: str | None = None) -> int:
    """Return the resident bytes of this process's mapped files with matching paths, from the kernel's table."""
    total, matches = 0, False
    for line in (smaps or Path("/proc/self/smaps").read_text()).splitlines():
        if found := _MAPPING.match(line):
            matches = re.search(pattern, found[1]) is not None
        elif matches and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def sent() -> int:
    """Return the acknowledged bytes of this process's open TCP connections, by the kernel's count."""
    total = 0
    for entry in list(Path("/proc/self/fd").iterdir()):
        try:
            if not str(entry.readlink()).startswith("socket:"):
                continue
        except FileNotFoundError:  # the file descriptor of the listing
            continue
        with socket.socket(fileno=os.dup(int(entry.name))) as connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6):
                tcp_info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKNOWLEDGED + 8)
                total += struct.unpack_from("Q", tcp_info, _ACKNOWLEDGED)[0]
    return total
