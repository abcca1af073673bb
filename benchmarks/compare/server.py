"""An asynchronous parameter server like Downpour (Dean et al., Large Scale Distributed Deep Networks, 2012).

A server holds the weights and the optimizer's state. Each worker trains on its part of the rows with a copy of the
weights: it sends the gradients of each batch to the server and gets the newest weights (n_push = n_fetch = 1), without
waiting for other workers. It computes the next batch during the transfer, so its weights lack its own last batch as
well as recent ones of others. A batch has one worker's rows and the size of the other methods' batches.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch
from torch import distributed, multiprocessing, nn
from torch.nn import functional

from benchmarks.compare import ranks, task
from benchmarks.compare.contenders import Outcome

_SERVER = 0
_RANKS = task.WORKERS + 1


def run(folder: str, rates: list[float], into: str) -> Outcome:
    """Train all models in sequence, with the server as a process in addition to a worker per core."""
    began = time.monotonic()
    multiprocessing.spawn(_rank, (folder, rates, into), nprocs=_RANKS)  # type: ignore[attr-defined, no-untyped-call]
    seconds = time.monotonic() - began
    reports = [json.loads((Path(into) / f"rank-{rank}.json").read_text()) for rank in range(_RANKS)]
    return Outcome(
        seconds=seconds,
        accuracy=reports[_SERVER]["accuracy"],
        held=max(rank["held"] for rank in reports),
        moved=sum(rank["moved"] for rank in reports),
    )


class _Flat:
    """A network with all weights in one tensor and all gradients in another, so each is one message."""

    def __init__(self) -> None:
        self.network = task.network()
        self.size = sum(parameter.numel() for parameter in self.network.parameters())

    def has(self, weights: torch.Tensor) -> None:
        """Use these weights."""
        for parameter, part in self._parts(weights):
            parameter.data = part

    def gradients_into(self, gradients: torch.Tensor) -> None:
        """Add the next backward pass to these gradients."""
        for parameter, part in self._parts(gradients):
            parameter.grad = part

    def _parts(self, flat: torch.Tensor) -> list[tuple[nn.Parameter, torch.Tensor]]:
        parameters = list(self.network.parameters())
        parts = torch.split(flat[: self.size], [parameter.numel() for parameter in parameters])
        return [(each, part.view_as(each)) for each, part in zip(parameters, parts, strict=True)]


def _rank(rank: int, folder: str, rates: list[float], into: str) -> None:
    torch.set_num_threads(1)
    ranks.meet(rank, _RANKS, into)
    accuracy, moved = [], 0
    parts = (
        [] if rank == _SERVER else [task.Rows.load(folder, s, rank - 1, task.WORKERS) for s in task.SPLITS]
    )
    for rate in rates:
        torch.manual_seed(0)
        model = _Flat()
        weights = nn.utils.parameters_to_vector(model.network.parameters()).detach()
        if rank == _SERVER:
            _serve(weights, rate)
        else:
            _work(model, weights.clone(), parts[0])
        distributed.broadcast(weights, _SERVER)
        model.has(weights)
        accuracy.append(ranks.measure(model.network, parts[1]) if parts else ranks.measure(None, None))
        if rank == _SERVER:
            moved += ranks.save(model.network, rate, into)
    report = {"accuracy": accuracy, "held": task.held(r"train-inputs\.npy$"), "moved": moved + task.sent()}
    (Path(into) / f"rank-{rank}.json").write_text(json.dumps(report))
    distributed.barrier()
    distributed.destroy_process_group()


def _serve(weights: torch.Tensor, rate: float) -> None:
    """Make a step for each message of gradients, and answer with the weights, until all workers are done.

    A message has one number more than the weights: 1 with a worker's last gradients, which get no answer.
    """
    optimizer = task.adam([weights], rate)
    message, busy = torch.empty(len(weights) + 1), task.WORKERS
    while busy:
        worker = distributed.recv(message)
        weights.grad = message[:-1]
        optimizer.step()
        if message[-1]:
            busy -= 1
        else:
            distributed.send(weights, worker)


def _work(model: _Flat, weights: torch.Tensor, rows: task.Rows) -> None:
    """Make one pass over the rows."""
    size = len(weights)
    mine, coming = weights, torch.empty(size)
    filled, sending = torch.zeros(size + 1), torch.zeros(size + 1)
    answer: list[distributed.Work | None] = []
    batches = -(-len(rows.labels) // task.BATCH)
    for number, (inputs, labels) in enumerate(rows.batches(task.BATCH), start=1):
        model.has(mine)
        filled.zero_()
        model.gradients_into(filled)
        functional.cross_entropy(model.network(inputs), labels).backward()  # type: ignore[no-untyped-call]
        for each in answer:
            assert each is not None, "this rank is of the group"
            each.wait()
        if answer:
            mine, coming = coming, mine
        filled, sending = sending, filled
        if number == batches:
            sending[-1] = 1.0
            distributed.send(sending, _SERVER)
        else:
            answer = [distributed.isend(sending, _SERVER), distributed.irecv(coming, _SERVER)]
