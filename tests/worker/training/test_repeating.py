"""Units that are trained again: by their ways in as many processes, to the bit; on one device, up to rounding."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cerebro import SubEpochSpec
from cerebro.client.replay import differences
from cerebro.contract.runs import FitRequest
from cerebro.contract.tasks import Member
from cerebro.contract.ways import Way
from cerebro.data.manifests import Source
from cerebro.data.shards import write_rows
from cerebro.errors import ConflictError
from cerebro.state import Model, Visit
from cerebro.usercode.encoding import encode
from cerebro.worker.training.repeating import Repeat

DDP = Way(technique="ddp", size=2)


class Small(SubEpochSpec):
    """A network with an optimizer that has a state."""

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        """See `SubEpochSpec`."""
        return [nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))]

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        """See `SubEpochSpec`."""
        (network,) = models
        optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
        checkpoint.track(optimizer=optimizer)
        for inputs, labels in dataloader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(inputs), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return {"batches": float(len(dataloader))}


def visit(epoch: int, way: Way | None) -> Visit:
    """A unit that was committed; of its numbers only these matter here."""
    return Visit(epoch, 0, 1, "worker-0", 13, (), (), "-", "-", 1, 0.0, 1.0, 0.0, 1.0, 0.0, cores=1, way=way)


def trained(folder: Path, *ways: Way | None, is_single: bool = False) -> Any:
    """The state of a model whose units ran by these ways, trained again."""
    rows = np.random.default_rng(0).normal(size=(13, 4)).astype(np.float32)
    partition = folder / "partition"
    if not partition.exists():
        source = Source(fingerprint="f", metadata="xxh3_64:0")
        write_rows(partition, [(row, number % 2) for number, row in enumerate(rows)], source)
    place = folder / f"units-{len(list(folder.iterdir()))}"
    place.mkdir()
    model = Model(id="m00", hyperparams={"batch_size": 4}, epochs=len(ways), partitions=(0,))
    for epoch, way in enumerate(ways, 1):
        model.add(visit(epoch, way))
    return repeat(partition, len(ways), is_single=is_single).train(model, place).state()


def repeat(partition: Path, epochs: int, *, is_single: bool = False) -> Repeat:
    """Of models with one partition."""
    spec = Small()
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
def test_units_are_trained_again_by_their_ways(tmp_path: Path) -> None:
    """Twice to the same bits; and on one device alone up to rounding, which is not to the bit."""
    one, again = (trained(tmp_path, None, DDP, None) for _ in range(2))
    assert list(differences(one, again)) == []
    single = trained(tmp_path, None, DDP, None, is_single=True)
    assert list(differences(one, single, tolerance=1e-4)) == []
    assert list(differences(one, single)) != []
    other = trained(tmp_path, None, None, None)
    assert list(differences(single, other)) == []


@pytest.mark.slow
def test_a_way_that_cannot_be_used_here_says_what_to_do(tmp_path: Path) -> None:
    """Rather than to train otherwise than the log says."""
    with pytest.raises(
        ConflictError,
        match=r"(?s)ran by mine, and cannot .*no technique 'mine'.*--tolerance",
    ):
        trained(tmp_path, Way(technique="mine", processes="one"))


def test_a_unit_on_a_set_of_partitions_is_refused(tmp_path: Path) -> None:
    """Rather than repeated on one of them."""
    model = Model(id="m00", hyperparams={"batch_size": 4}, epochs=1, partitions=(0, 1))
    model.add(visit(1, None)._replace(others=(Member(worker="worker-1", partition=1),)))
    with pytest.raises(ConflictError, match="m00 was trained on partitions 0, 1 at once in epoch 1"):
        repeat(tmp_path, 1).train(model, tmp_path)


def test_a_tolerance_is_a_share_of_the_norm() -> None:
    """Of tensors of numbers with a fraction, and of such numbers; all else is equal or not."""
    one = {"w": torch.tensor([3.0, 4.0]), "n": torch.tensor([1, 2]), "x": 1.0, "s": "a"}
    near = {"w": torch.tensor([3.0, 4.004]), "n": torch.tensor([1, 2]), "x": 1.0005, "s": "a"}
    assert list(differences(one, near, tolerance=1e-3)) == []
    assert list(differences(one, near, tolerance=1e-4)) == ["state['w']", "state['x']"]
    assert list(differences(one, {**near, "n": torch.tensor([1, 3])}, tolerance=1e-1)) == ["state['n']"]
