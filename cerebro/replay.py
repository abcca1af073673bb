"""Replay: a run trained again in one process, visiting partitions in the logged order, and compared bit for bit.

This is the proof behind hopping (seed paper, section 3.1, "Reproducibility"): the log of visits determines
the weights. No state is saved and loaded between units here, nothing hops; what training does to a model is
`cerebro.training.unit`, as in a worker. Runs user code in the calling process: only for one's own
experiments.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from cerebro.connection import Connection, connect
from cerebro.contract.runs import FitPlan, FitRequest
from cerebro.data.loader import PartitionLoader
from cerebro.data.partitions import find_partitions
from cerebro.encoding import decode
from cerebro.errors import DataError, NotFoundError
from cerebro.misc import fetch_misc
from cerebro.session import Session
from cerebro.spec import SubEpochSpec
from cerebro.state import Model, Run
from cerebro.training import checkpoint as checkpoints
from cerebro.training.feed import Feed
from cerebro.training.seeds import unit_seed
from cerebro.training.unit import Trainee, create, default_device, train_unit
from cerebro.volumes import Volumes


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """A model trained again.

    Attributes:
        units: visits replayed.
        differences: names of tensors and values that are not equal to the saved ones, to the bit.
    """

    model: str
    units: int
    differences: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        """Whether the final state is the saved one."""
        return not self.differences


def main(experiment: str, model: str | None = None, home: str | None = None) -> int:
    """`cerebro replay`: prints a line per model; 0 if all are equal, else 1."""
    connection = connect(home=home)
    is_equal = True
    for found in replay(connection, experiment, model=model):
        is_equal = is_equal and found.is_equal
        outcome = "equal to the bit" if found.is_equal else f"DIFFERENT in {', '.join(found.differences[:5])}"
        sys.stdout.write(f"{found.model}: {found.units} units replayed, final state {outcome}\n")
        sys.stdout.flush()
    return 0 if is_equal else 1


def replay(
    connection: Connection, experiment: str, *, run: str | None = None, model: str | None = None
) -> Iterator[Replayed]:
    """Train the models of a fit run again, one after another.

    Args:
        run: fit run; the newest if left out.
        model: one model; all with a visit if left out.

    Raises:
        NotFoundError: no such run or model.
        DataError: a partition is not on this machine.
    """
    record = connection.kvs.experiment(experiment)
    fit = Session(connection, record).chosen_fit(run)
    if model is not None and model not in fit.models:
        raise NotFoundError(f"no model {model!r} in {fit.id}: it has {', '.join(fit.models)}")
    request = fit.request
    assert isinstance(request, FitRequest)
    folders = _partitions(connection.volumes, fit)
    if record.archive is not None:
        sys.path.append(str(connection.volumes.archive(record.archive)))
    spec: SubEpochSpec = decode(connection.kvs.code(request.code).encoded)
    spec.misc_dir = fetch_misc(record.locators.misc, connection.volumes.misc)
    spec.initialize_worker()
    # As many threads as the workers had: a sum that is split differently rounds differently.
    torch.set_num_threads(min((w.record.cores for w in connection.kvs.workers()), default=1))
    for chosen in fit.models.values():
        if chosen.visits and model in (None, chosen.id):
            trainee = _train(spec, request, chosen, folders)
            reference = chosen.visits[-1].checkpoint
            saved = checkpoints.load(connection.files.checkpoints(reference), reference, default_device())
            yield Replayed(
                model=chosen.id,
                units=len(chosen.visits),
                differences=tuple(differences(trainee.state(), saved)),
            )


def differences(one: object, other: object, where: str = "state") -> Iterator[str]:
    """Where two states differ, to the bit: shapes, dtypes, values and their types."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        # Bits, not values: -0.0 and NaN count as they are.
        same = one.dtype == other.dtype and one.shape == other.shape
        if not same or not torch.equal(_bits(one), _bits(other)):
            yield where
    elif isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            yield from differences(one.get(key), other.get(key), f"{where}[{key!r}]")
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for position, (first, second) in enumerate(zip(one, other, strict=True)):
            yield from differences(first, second, f"{where}[{position}]")
    elif type(one) is not type(other) or repr(one) != repr(other):
        yield where


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8)


def _train(spec: SubEpochSpec, request: FitRequest, model: Model, folders: dict[int, Path]) -> Trainee:
    device = default_device()
    trainee = create(spec, model.hyperparams, seed=request.seed, model=model.id, device=device)
    size = model.hyperparams["batch_size"]
    assert isinstance(size, int)
    for visit in model.visits:
        seed = unit_seed(request.seed, model.id, visit.epoch, visit.partition)
        loader = PartitionLoader([folders[visit.partition]], batch_size=size, seed=seed, device=device)
        train_unit(
            spec,
            trainee,
            Feed(loader),
            model.hyperparams,
            seed=request.seed,
            model=model.id,
            epoch=visit.epoch,
            partition=visit.partition,
        )
    return trainee


def _partitions(volumes: Volumes, run: Run) -> dict[int, Path]:
    """Where the training partitions lie on this machine: below any worker's shard volume."""
    assert isinstance(run.plan, FitPlan)
    roots = [volumes.shards / "datasets", *volumes.shards.glob("*/datasets")]
    found = {
        part.partition: part.folder
        for root in roots
        for part in find_partitions(root)
        if (part.dataset, part.split) == (run.plan.dataset, "train")
    }
    missing = sorted(set(run.plan.partitions) - set(found))
    if missing:
        raise DataError(
            f"partitions {missing} of data set {run.plan.dataset} are not below {volumes.shards}: replay needs all "
            "of them on one machine, and training data stays with its workers"
        )
    return found
