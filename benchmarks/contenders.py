"""The other ways to train the models of `side_by_side`, each as a program: ``python contenders.py WAY DATA MODELS``.

- ``task-parallel``: a process per core, all data in each; a process takes the next model when it is done with one.
- ``ray-tune``: Ray Tune with a core per trial, all data in each.
- ``ddp``: torch's DistributedDataParallel, a rank per core, half the data in each, one model after another.

Prints the seconds that count on the last line. Needs torch and numpy, and for the second ``ray[tune]``: it runs in an
environment of its own, without Cerebro.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

FEATURES, CLASSES, BATCH, EPOCHS, CORES = 784, 10, 128, 3, 2


def network() -> nn.Module:
    """The perceptron of all models."""
    return nn.Sequential(
        *(nn.Linear(FEATURES, 1024), nn.ReLU()),
        *(nn.Linear(1024, 512), nn.ReLU()),
        nn.Linear(512, CLASSES),
    )


def step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Any, labels: Any) -> torch.Tensor:
    """One batch; its loss."""
    loss = functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.detach()


def load(folder: str) -> tuple[torch.Tensor, torch.Tensor]:
    """All rows: inputs of shape (rows, `FEATURES`), labels of shape (rows,)."""
    root = Path(folder)
    return torch.from_numpy(np.load(root / "inputs.npy")), torch.from_numpy(np.load(root / "labels.npy"))


def epoch(model: nn.Module, optimizer: Any, inputs: torch.Tensor, labels: torch.Tensor, batch: int) -> float:
    """One pass over the rows in random order; its mean loss."""
    order, total = torch.randperm(len(inputs)), torch.zeros(())
    for begin in range(0, len(inputs), batch):
        chosen = order[begin : begin + batch]
        total += step(model, optimizer, inputs[chosen], labels[chosen]) * len(chosen)
    return total.item() / len(inputs)


def train(folder: str, rates: list[float], into: str) -> None:
    """Train one model after another, and save each."""
    torch.set_num_threads(1)
    inputs, labels = load(folder)
    for rate in rates:
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        for _ in range(EPOCHS):
            epoch(model, optimizer, inputs, labels, BATCH)
        torch.save(model.state_dict(), Path(into) / f"{rate}.pt")


def task_parallel(folder: str, rates: list[float], into: str) -> float:
    """Seconds from the call until the last process has ended."""
    from torch import multiprocessing

    began = time.monotonic()
    context = multiprocessing.get_context("spawn")
    with context.Pool(CORES) as pool:
        pool.starmap(train, [(folder, [rate], into) for rate in rates], chunksize=1)
    return time.monotonic() - began


def ray_tune(folder: str, rates: list[float], into: str) -> float:
    """Seconds from the call to the results; Ray itself is up by then, as Cerebro's cluster is."""
    import ray
    from ray import tune

    def trial(config: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        inputs, labels = load(folder)
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
        for _ in range(EPOCHS):
            tune.report({"loss": epoch(model, optimizer, inputs, labels, BATCH)})
        torch.save(model.state_dict(), Path(into) / f"{config['lr']}.pt")

    ray.init(num_cpus=CORES, include_dashboard=False, log_to_driver=False)
    began = time.monotonic()
    tuner = tune.Tuner(
        tune.with_resources(trial, {"cpu": 1}),
        param_space={"lr": tune.grid_search(rates)},
        run_config=tune.RunConfig(storage_path=into, verbose=0),
    )
    results = tuner.fit()
    seconds = time.monotonic() - began
    assert len(results) == len(rates), results.errors
    assert not results.errors, results.errors
    ray.shutdown()
    return seconds


def ddp(folder: str, rates: list[float], into: str) -> float:
    """Seconds from the call until the last rank has ended."""
    from torch import multiprocessing

    began = time.monotonic()
    multiprocessing.spawn(_rank, (folder, rates, into), nprocs=CORES)  # type: ignore[attr-defined, no-untyped-call]
    return time.monotonic() - began


def _rank(rank: int, folder: str, rates: list[float], into: str) -> None:
    from torch import distributed

    torch.set_num_threads(1)
    meeting = f"file://{into}/meeting"
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=CORES)
    inputs, labels = (part[rank::CORES] for part in load(folder))
    for rate in rates:
        torch.manual_seed(0)
        model = nn.parallel.DistributedDataParallel(network())
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        for _ in range(EPOCHS):
            epoch(model, optimizer, inputs, labels, BATCH // CORES)
        if rank == 0:
            torch.save(model.module.state_dict(), Path(into) / f"{rate}.pt")
    distributed.destroy_process_group()


def main() -> None:
    """Run one of the ways to train that the module compares."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    way, folder, rates, into = sys.argv[1:]
    ways = {"task-parallel": task_parallel, "ray-tune": ray_tune, "ddp": ddp}
    seconds = ways[way](folder, json.loads(rates), into)
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
