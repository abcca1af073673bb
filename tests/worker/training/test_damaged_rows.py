"""A sub-epoch fails without blame of the user if its rows change on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cerebro.errors import ShardCorruptError
from tests.state.stories import DATASET
from tests.worker.training.handlers import Linear, handler_of, volumes_in, write_split
from tests.worker.training.test_resumed import task


class Damaging(Linear):
    """Flips a bit of a shard during training."""

    def __init__(self, shard: Path, *, is_noticed: bool) -> None:
        self.shard, self.is_noticed = shard, is_noticed

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        for _ in dataloader:
            pass
        content = bytearray(self.shard.read_bytes())
        content[len(content) // 2] ^= 1
        self.shard.write_bytes(content)
        if self.is_noticed:
            raise IndexError("label 268435456 is out of bounds")
        return {"loss": 1.0}


@pytest.mark.parametrize("is_noticed", [False, True])
def test_rows_that_change_during_a_sub_epoch_are_named(tmp_path: Path, is_noticed: bool) -> None:
    """User code may fail because of the rows, or return metrics."""
    volumes = volumes_in(tmp_path)
    write_split(volumes, "train", 1)
    shard = next(volumes.partition(DATASET, "train", 0).glob("*.arrow"))
    spec = Damaging(shard, is_noticed=is_noticed)
    with handler_of(spec, volumes) as handler, pytest.raises(ShardCorruptError, match=shard.name):
        handler.handle(task(), 1)
