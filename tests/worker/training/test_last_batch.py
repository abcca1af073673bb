"""A last batch of one row fails in batch normalization with a clear error; `drop_last` skips it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from cerebro.contract.records import batches_of
from cerebro.data.loader import MergedLoader, PartitionLoader
from cerebro.errors import SpecError
from cerebro.spec import SubEpochSpec
from cerebro.worker.training.checkpoints import checkpoint as checkpoints
from cerebro.worker.training.checkpoints import comparison
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.sub_epoch import create, train_sub_epoch
from tests.data.rows import write_partition
from tests.state.stories import sub_epoch
from tests.worker.training.handlers import handler_of, volumes_in, write_split
from tests.worker.training.test_validation import fitted, next_task, repeated


class Normalised(SubEpochSpec):
    """Batch normalization before a linear model; records each batch's size."""

    def __init__(self, width: int = 3) -> None:
        self.width = width

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        return [torch.nn.Sequential(torch.nn.BatchNorm1d(self.width), torch.nn.Linear(self.width, 1))]

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        optimizer = torch.optim.SGD(models[0].parameters(), lr=0.1)
        for inputs, _ in dataloader:
            checkpoint.setdefault("rows", []).append(len(inputs))
            checkpoint.setdefault("steps", []).append((dataloader.step, dataloader.total_steps))
            optimizer.zero_grad()
            torch.autograd.backward(models[0](inputs.flatten(1)).square().mean())
            optimizer.step()
        return {"loss": 1.0}


def trained(folder: Path, rows: int, size: int) -> None:
    write_partition(folder, [rows])
    loader = PartitionLoader([folder], batch_size=size, seed=1)
    (inputs, _) = next(iter(PartitionLoader([folder], batch_size=1, seed=None)))
    spec, given = Normalised(inputs.flatten(1).shape[1]), {"batch_size": size}
    trainee = create(spec, given, seed=1, model="m00", device=torch.device("cpu"))
    train_sub_epoch(
        spec, trainee, InstrumentedLoader(loader), given, seed=1, model="m00", epoch=1, partition=3
    )


def test_a_last_batch_of_one_row_is_named(tmp_path: Path) -> None:
    """The error has the partition, its rows, the batch size and the remedy."""
    with pytest.raises(
        SpecError,
        match=r"last batch of partition 3 has one, because it has 9 rows and batch_size is 4.*'drop_last'",
    ):
        trained(tmp_path, 9, 4)


@pytest.mark.parametrize(("rows", "size", "kept"), [(9, 4, [4, 4]), (8, 4, [4, 4]), (7, 4, [4]), (4, 4, [4])])
def test_a_smaller_last_batch_can_be_dropped(tmp_path: Path, rows: int, size: int, kept: list[int]) -> None:
    """The counts of rows and batches exclude it."""
    write_partition(tmp_path, [rows])
    loader = PartitionLoader([tmp_path], batch_size=size, seed=1, drop_last=True)
    whole = PartitionLoader([tmp_path], batch_size=size, seed=1)
    batches = [labels.tolist() for _, labels in loader]
    assert [len(labels) for labels in batches] == kept
    assert batches == [labels.tolist() for _, labels in whole][: len(kept)]
    assert len(loader) == len(kept) == batches_of(rows, size, drop_last=True)
    feed = InstrumentedLoader(loader)
    assert feed.num_rows == len(feed.as_torch().dataset) == sum(kept)  # type: ignore[arg-type]


def test_merged_partitions_drop_one_last_batch(tmp_path: Path) -> None:
    """Only the last merged batch is smaller."""
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        write_partition(folder, [7])
    for drop_last, kept in ((False, [4, 4, 4, 2]), (True, [4, 4, 4])):
        loader = MergedLoader(folders, batch_size=4, seeds=[1, 2], drop_last=drop_last)
        assert [len(labels) for _, labels in loader] == kept


def test_a_run_with_drop_last_counts_its_steps_and_is_replayed(tmp_path: Path) -> None:
    """`step` and `total_steps` count the trained batches, and a replay is bit-identical."""
    volumes = volumes_in(tmp_path)
    sizes = write_split(volumes, "train", 2)
    story = fitted(sizes, hyperparams={"batch_size": 10, "drop_last": True})
    model = story.model()
    with handler_of(Normalised(), volumes) as handler:
        while not model.is_trained:
            body = next_task(story, model.remaining[0])
            story.do(sub_epoch(body.epoch, body.partition), body.partition, handler.handle(body, 1))
    saved = checkpoints.load(volumes.checkpoints, model.sub_epochs[-1].checkpoint.ref(), "cpu")
    per_epoch = sum(rows // 10 for rows in sizes.values())
    assert set(saved["checkpoint"]["rows"]) == {10}
    assert saved["checkpoint"]["steps"] == [(step, 3 * per_epoch) for step in range(3 * per_epoch)]
    again = repeated(story, model, volumes, sizes, tmp_path, Normalised())
    assert list(comparison.differences(again, saved)) == []
