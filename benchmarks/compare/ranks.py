"""Ranks that train one model after another, each on its part of the rows: data parallelism and model averaging.

`ddp` is torch's DistributedDataParallel over gloo, which averages the gradients of each batch. With `averaging`, each
rank trains a copy of the model for an epoch; then the copies' weights are averaged (bulk synchronous parallelism).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import distributed, multiprocessing, nn

from benchmarks.compare import task
from benchmarks.compare.contenders import Outcome


def ddp(folder: str, rates: list[float], into: str) -> Outcome:
    """Share each batch between the ranks: the same steps as in one process."""
    return _run(_ddp, folder, rates, into)


def ddp_larger_batch(folder: str, rates: list[float], into: str) -> Outcome:
    """Give each rank a full batch: `WORKERS` times as many rows per step, and so fewer steps."""
    return _run(_ddp_larger_batch, folder, rates, into)


def averaging(folder: str, rates: list[float], into: str) -> Outcome:
    """Average the weights once, after the epoch."""
    return _run(_averaging, folder, rates, into)


Train = Callable[[task.Rows, float], nn.Module]


def _ddp(rows: task.Rows, rate: float, batch: int = task.BATCH // task.WORKERS) -> nn.Module:
    # Gradients are views of the messages. All fit into one bucket; smaller buckets were no faster.
    model = nn.parallel.DistributedDataParallel(
        task.network(), gradient_as_bucket_view=True, static_graph=True
    )
    task.epoch(model, task.adam(model.parameters(), rate), rows, batch)
    trained: nn.Module = model.module
    return trained


def _ddp_larger_batch(rows: task.Rows, rate: float) -> nn.Module:
    return _ddp(rows, rate, task.BATCH)


def _averaging(rows: task.Rows, rate: float) -> nn.Module:
    model = task.network()
    task.epoch(model, task.adam(model.parameters(), rate), rows)
    with torch.no_grad():
        weights = nn.utils.parameters_to_vector(model.parameters())
        distributed.all_reduce(weights)
        nn.utils.vector_to_parameters(weights / task.WORKERS, model.parameters())
    return model


def _run(train: Train, folder: str, rates: list[float], into: str) -> Outcome:
    began = time.monotonic()
    arguments = (train, folder, rates, into)
    multiprocessing.spawn(_rank, arguments, nprocs=task.WORKERS)  # type: ignore[attr-defined, no-untyped-call]
    seconds = time.monotonic() - began
    reports = [json.loads((Path(into) / f"rank-{rank}.json").read_text()) for rank in range(task.WORKERS)]
    return Outcome(
        seconds=seconds,
        accuracy=reports[0]["accuracy"],
        held=max(rank["held"] for rank in reports),
        moved=sum(rank["moved"] for rank in reports),
    )


def _rank(rank: int, train: Train, folder: str, rates: list[float], into: str) -> None:
    torch.set_num_threads(1)
    meet(rank, task.WORKERS, into)
    rows, valid = (task.Rows.load(folder, split, rank, task.WORKERS) for split in task.SPLITS)
    accuracy, moved = [], 0
    for rate in rates:
        torch.manual_seed(0)  # the same initial weights in all ranks
        model = train(rows, rate)
        accuracy.append(measure(model, valid))
        if rank == 0:
            moved += save(model, rate, into)
    report = {"accuracy": accuracy, "held": task.held(r"train-inputs\.npy$"), "moved": moved + task.sent()}
    (Path(into) / f"rank-{rank}.json").write_text(json.dumps(report))
    distributed.barrier()
    distributed.destroy_process_group()


def meet(rank: int, ranks: int, into: str) -> None:
    """Connect the ranks over the loopback interface."""
    meeting = f"file://{into}/meeting"
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)


def measure(model: nn.Module | None, part: task.Rows | None) -> float:
    """Return the accuracy on the rows of all ranks; a rank without a model or rows contributes nothing."""
    counts = torch.zeros(2, dtype=torch.long)
    if model is not None and part is not None:
        counts += torch.tensor([task.correct(model, part), len(part.labels)])
    distributed.all_reduce(counts)
    return float(counts[0] / counts[1])


def save(model: nn.Module, rate: float, into: str) -> int:
    """Save the model and return the bytes of its file."""
    path = Path(into) / f"{rate}.pt"
    torch.save(model.state_dict(), path)
    return path.stat().st_size
