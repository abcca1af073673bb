"""Replay repeats sub-epochs bit-identically under their parallel plans, and approximately on one device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cerebro import StepSpec, SubEpochSpec
from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.runs import FitRequest
from cerebro.contract.tasks.gangs import Member
from cerebro.data.manifests import Source
from cerebro.data.shards import write_rows
from cerebro.errors import ConflictError
from cerebro.state import CompletedSubEpoch, Model
from cerebro.usercode.encoding import encode
from cerebro.worker.training.checkpoints.comparison import differences
from cerebro.worker.training.ranks.repetition import Repeat
from tests.state.completed_sub_epochs import COMPLETED

DDP = ParallelPlan(technique="ddp", size=2)


class Stepped(StepSpec):
    """The network of `Small` by steps, with averaged weights."""

    ema = 0.9

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        """See `StepSpec`."""
        return Small().create_models(hyperparams)

    def training_step(self, models: list[Any], batch: Any, hyperparams: Mapping[str, Any]) -> Any:
        """See `StepSpec`."""
        return nn.functional.cross_entropy(models[0](batch[0]), batch[1])

    def configure_optimizers(self, models: list[Any], hyperparams: Mapping[str, Any]) -> Any:
        """See `StepSpec`."""
        return torch.optim.Adam(models[0].parameters(), lr=hyperparams.get("lr", 0.05))


class Small(SubEpochSpec):
    """A network with a stateful optimizer."""

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        """See `SubEpochSpec`."""
        return [nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))]

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        """See `SubEpochSpec`."""
        (network,) = models
        optimizer = torch.optim.Adam(network.parameters(), lr=hyperparams.get("lr", 0.05))
        checkpoint.track(optimizer=optimizer)
        for inputs, labels in dataloader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(inputs), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return {"batches": float(len(dataloader))}


def completed_sub_epoch(epoch: int, parallel_plan: ParallelPlan | None) -> CompletedSubEpoch:
    """Return a committed sub-epoch; unused numbers are arbitrary."""
    return COMPLETED._replace(epoch=epoch, rows=13, cores=1, parallel_plan=parallel_plan)


def trained(
    folder: Path,
    *parallel_plans: ParallelPlan | None,
    is_single: bool = False,
    spec: SubEpochSpec | None = None,
) -> Any:
    """Replay a model whose sub-epochs ran under these plans; return its state."""
    rows = np.random.default_rng(0).normal(size=(13, 4)).astype(np.float32)
    partition = folder / "partition"
    if not partition.exists():
        source = Source(fingerprint="f", metadata="xxh3_64:0")
        write_rows(partition, [(row, number % 2) for number, row in enumerate(rows)], source)
    place = folder / f"sub_epochs-{len(list(folder.iterdir()))}"
    place.mkdir()
    model = Model(id="m00", hyperparams={"batch_size": 4}, epochs=len(parallel_plans), partitions=(0,))
    for epoch, parallel_plan in enumerate(parallel_plans, 1):
        model.add(completed_sub_epoch(epoch, parallel_plan))
    replay = repeat(partition, len(parallel_plans), is_single=is_single, spec=spec)
    return replay.train(model, place).state()


def repeat(
    partition: Path, epochs: int, *, is_single: bool = False, spec: SubEpochSpec | None = None
) -> Repeat:
    """Return a replay for models with one partition."""
    spec = spec or Small()
    return Repeat(
        technique=lambda sha256: "",
        spec=spec,
        code=encode(spec).encoded,
        request=FitRequest(code="0" * 64, models=({"batch_size": 4},), epochs=epochs, metric="m", mode="min"),
        folders={0: partition},
        rows={0: 13},
        archive="",
        cores=1,
        is_single=is_single,
    )


@pytest.mark.slow
@pytest.mark.processes
def test_a_step_spec_is_replayed_as_a_loop_by_hand(tmp_path: Path) -> None:
    """The same bits, alone and on two ranks; averaged weights are repeated to the bit, too."""
    plans = (None, DDP, None)
    steps, again, loop = (trained(tmp_path, *plans, spec=spec) for spec in (Stepped(), Stepped(), Small()))
    assert not list(differences(steps, again))
    assert steps["checkpoint"].keys() == {"optimizer", "ema"}
    assert not list(differences(steps["models"], loop["models"]))
    assert not list(differences(steps["checkpoint"]["optimizer"], loop["checkpoint"]["optimizer"]))


@pytest.mark.slow
@pytest.mark.processes
def test_sub_epochs_are_replayed_by_their_parallel_plans(tmp_path: Path) -> None:
    """Two replays are bit-identical; a replay on one device is equal up to rounding."""
    one, again = (trained(tmp_path, None, DDP, None) for _ in range(2))
    assert list(differences(one, again)) == []
    single = trained(tmp_path, None, DDP, None, is_single=True)
    assert list(differences(one, single, tolerance=1e-4)) == []
    assert list(differences(one, single)) != []
    other = trained(tmp_path, None, None, None)
    assert list(differences(single, other)) == []


@pytest.mark.slow
@pytest.mark.processes
def test_a_changed_rate_is_replayed_by_the_parallel_plan_of_its_sub_epoch(tmp_path: Path) -> None:
    """The optimizer's saved learning rate must not override the new one.

    Compared with one device, up to rounding.
    """
    trained(tmp_path, None)  # creates the partition

    def again(parallel_plan: ParallelPlan | None, *, is_changed: bool = True) -> Any:
        place = tmp_path / f"sub_epochs-{len(list(tmp_path.iterdir()))}"
        place.mkdir()
        model = Model(id="m00", hyperparams={"batch_size": 4, "lr": 0.05}, epochs=3, partitions=(0,))
        for epoch, by in enumerate((None, parallel_plan, None), 1):
            if is_changed and epoch == 2:
                model.change({"lr": 0.3})
            model.configs.active = len(model.configs.versions) - 1
            model.add(completed_sub_epoch(epoch, by))
        return repeat(tmp_path / "partition", 3).train(model, place).state()

    changed = again(None)
    assert list(differences(changed, again(DDP), tolerance=1e-4)) == []
    assert list(differences(changed, again(None, is_changed=False), tolerance=1e-2)) != []


@pytest.mark.slow
@pytest.mark.processes
def test_an_unusable_parallel_plan_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    """The replay does not silently use another plan."""
    with pytest.raises(
        ConflictError,
        match=r"(?s)ran by mine, and cannot .*no technique 'mine'.*--tolerance",
    ):
        trained(tmp_path, ParallelPlan(technique="mine", processes="one"))


@pytest.mark.slow
@pytest.mark.processes
def test_sub_epochs_of_gangs_are_replayed_on_all_of_their_partitions(tmp_path: Path) -> None:
    """Two replays with as many processes are bit-identical; a single process is equal up to rounding."""
    folders = {0: tmp_path / "p0", 1: tmp_path / "p1"}
    source = Source(fingerprint="f", metadata="xxh3_64:0")
    for number, folder in folders.items():
        rows = np.random.default_rng(number).normal(size=(13 - 4 * number, 4)).astype(np.float32)
        write_rows(folder, [(row, place % 2) for place, row in enumerate(rows)], source)
    model = Model(id="m00", hyperparams={"batch_size": 4}, epochs=2, partitions=(0, 1))
    gang = ParallelPlan(technique="ddp", workers=2)
    for epoch in (1, 2):
        model.add(
            completed_sub_epoch(epoch, gang)._replace(other_members=(Member(worker="worker-1", partition=1),))
        )

    def again(is_single: bool) -> Any:
        place = tmp_path / f"sub_epochs-{len(list(tmp_path.iterdir()))}"
        place.mkdir()
        repeated = repeat(folders[0], 2, is_single=is_single)
        return replace(repeated, folders=folders, rows={0: 13, 1: 9}).train(model, place).state()

    one, other, alone = again(False), again(False), again(True)
    assert list(differences(one, other)) == []
    assert list(differences(one, alone, tolerance=1e-4)) == []
    assert list(differences(one, alone)) != []


def test_a_tolerance_is_a_share_of_the_norm() -> None:
    """It applies to floats and float tensors; other values are compared exactly."""
    one = {"w": torch.tensor([3.0, 4.0]), "n": torch.tensor([1, 2]), "x": 1.0, "s": "a"}
    near = {"w": torch.tensor([3.0, 4.004]), "n": torch.tensor([1, 2]), "x": 1.0005, "s": "a"}
    assert list(differences(one, near, tolerance=1e-3)) == []
    assert list(differences(one, near, tolerance=1e-4)) == ["state['w']", "state['x']"]
    assert list(differences(one, {**near, "n": torch.tensor([1, 3])}, tolerance=1e-1)) == ["state['n']"]
