"""Check that a run committed each sub-epoch once and has the weights of a plain training.

The check is independent of `cerebro replay`; they share only the functions that call user code.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from cerebro.contract.events import Event, TaskCommitted
from cerebro.contract.runs import FitPlan, FitRequest
from cerebro.data.loader import PartitionLoader
from cerebro.runtime.kvs.client import KvsClient
from cerebro.runtime.volumes import Volumes
from cerebro.state import Model, Run
from cerebro.usercode.encoding import decode
from cerebro.worker.training.checkpoints import checkpoint as checkpoints
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.seeds import order_seed
from cerebro.worker.training.sub_epoch import create, train_sub_epoch

CPU = torch.device("cpu")


def check(run: Run, events: Iterable[Event], kvs: KvsClient, volumes: Volumes, redone: int = 0) -> None:
    """Check that each sub-epoch was committed once (plus `redone` re-executions) and that the final states equal a
    replay.
    """
    assert isinstance(run.plan, FitPlan)
    assert isinstance(run.request, FitRequest)
    trained = [model for model in run.models.values() if model.failures.final is None]
    commits = Counter(event.task for event in events if isinstance(event, TaskCommitted))
    sub_epochs = {
        f"{run.id}/train/{model.id}/e{epoch}/p{part}"
        for model in trained
        for epoch, part in itertools.product(range(1, run.request.epochs + 1), model.partitions)
    }
    assert {sub_epoch for sub_epoch in commits if sub_epoch in sub_epochs} == sub_epochs
    assert sum(commits[sub_epoch] for sub_epoch in sub_epochs) == len(sub_epochs) + redone, commits
    for model in trained:
        saved = checkpoints.load(volumes.checkpoints, model.sub_epochs[-1].checkpoint.ref(), CPU)
        assert_same(saved, replayed(run, model, kvs, volumes), model.id)


def replayed(run: Run, model: Model, kvs: KvsClient, volumes: Volumes) -> dict[str, Any]:
    """Train in this process on the partitions in the logged order and return the state."""
    assert isinstance(run.request, FitRequest)
    assert isinstance(run.plan, FitPlan)
    spec = decode(kvs.code(run.request.code).encoded)
    spec.gate = 0
    spec.initialize_worker()
    size = model.hyperparams["batch_size"]
    assert isinstance(size, int)
    seed, threads = model.training_seed(run.request.seed), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        trainee = create(spec, model.hyperparams, seed=seed, model=model.id, device=CPU)
        for sub_epoch in model.sub_epochs:
            place = f"*/datasets/{run.plan.dataset}/train/partition-{sub_epoch.partition:04d}"
            order = order_seed(seed, model.id, sub_epoch.epoch, sub_epoch.partition, is_shared=True)
            loader = PartitionLoader([next(volumes.shards.glob(place))], batch_size=size, seed=order)
            train_sub_epoch(
                spec,
                trainee,
                InstrumentedLoader(loader),
                model.hyperparams,
                seed=seed,
                model=model.id,
                epoch=sub_epoch.epoch,
                partition=sub_epoch.partition,
            )
    finally:
        torch.set_num_threads(threads)
    return trainee.state()


def assert_same(one: Any, other: Any, where: str) -> None:
    """Compare two states bit by bit."""
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype, where
        assert torch.equal(one, other), f"{where} differs by {(one - other).abs().max()}"
    elif isinstance(one, Mapping):
        assert list(one) == list(other), where
        for key in one:
            assert_same(one[key], other[key], f"{where}[{key!r}]")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), where
        for position, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_same(left, right, f"{where}[{position}]")
    else:
        assert one == other, where
