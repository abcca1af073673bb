"""The first computation of a process, which takes longer than later ones: libraries bind and load what they need then.

Done once before task processes are forked, and once more in each while it waits for its task.
"""

from __future__ import annotations

import io

import torch

from cerebro.worker.training.seeds import seed_everything


def warm_up_before_fork() -> None:
    """Make, train, save and load a model of a few numbers. Starts no thread: with one, torch computes in the caller."""
    torch.set_num_threads(1)
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2))
    optimizer = torch.optim.Adam(module.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        labels = torch.zeros(2, dtype=torch.long)
        torch.nn.functional.cross_entropy(module(torch.randn(2, 2)), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    file = io.BytesIO()
    torch.save({"module": module.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    torch.load(file, weights_only=True)


def warm_up() -> None:
    """Draw and multiply a few numbers; with nothing that user code, which is here already, may have replaced."""
    seed_everything(0)
    numbers = torch.zeros(2, 2, requires_grad=True)
    (numbers @ numbers).relu().sum().backward()  # type: ignore[no-untyped-call]
