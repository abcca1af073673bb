"""Warm-up computations: the first calls in a process are slow, because libraries resolve symbols and load code.

`model_hopper.handler` runs `warm_up_before_fork` in the parent before it forks task processes, and `warm_up` in each
task process before its task arrives. The results are discarded.
"""

from __future__ import annotations

import io

import torch

from cerebro.worker.training.checkpoints.checkpoint import put
from cerebro.worker.training.seeds import has_cpu_only, seed_everything


def warm_up_before_fork() -> None:
    """Make, train, save and load a tiny model, on one thread: a thread pool would not survive the fork.

    A torch that was built for accelerators isn't trained: the first backward pass, on the CPU too, initialises the
    driver and starts a thread for each device, and then no fork can train.
    """
    torch.set_num_threads(1)
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2))
    optimizer = torch.optim.Adam(module.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        labels = torch.zeros(2, dtype=torch.long)
        loss = torch.nn.functional.cross_entropy(module(torch.randn(2, 2)), labels)
        if has_cpu_only():
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    file = io.BytesIO()
    torch.save({"module": module.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    torch.load(file, weights_only=True)


def warm_up() -> None:
    """Seed, multiply and save a few numbers; avoids functions that user code may have patched."""
    seed_everything(0)
    numbers = torch.zeros(2, 2, requires_grad=True)
    (numbers @ numbers).relu().sum().backward()  # type: ignore[no-untyped-call]
    put({"models": [{"weight": numbers}]}, io.BytesIO())
