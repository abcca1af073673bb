"""One rank's share of a sub-epoch: a partition, and rows of each batch.

`model_hopper.handler` and `repetition` create it to get the rank's `PartitionLoader`. In a gang each worker's ranks
read that worker's partition; otherwise all ranks read shares of one partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from cerebro.contract.records import Hyperparameters, drops_last
from cerebro.contract.tasks.gangs import Gang
from cerebro.data.loader import PartitionLoader
from cerebro.data.mapped import MappedRows
from cerebro.data.merged import Merged
from cerebro.data.prefetch_tuning import ReadingAhead


@dataclass(frozen=True, kw_only=True)
class SubEpochShare:
    """A rank's share of a sub-epoch.

    Attributes:
        partition: the rank's partition.
        share: index and number of ranks that read the same partition.
        merged: index of the partition in a gang's set.
    """

    partition: int
    share: tuple[int, int]
    merged: Merged | None = None

    @classmethod
    def of_member(cls, gang: Gang, rank: int) -> SubEpochShare:
        """Return a gang rank's share: each member reads its own partition with its own ranks."""
        number, rank_here = gang.member_of(rank)
        return cls(
            partition=gang.members[number].partition,
            share=(rank_here, len(gang.ranks_of(number))),
            merged=Merged(rows=gang.rows, number=number),
        )

    def loader(
        self,
        source: Sequence[Path] | MappedRows,
        *,
        hyperparams: Hyperparameters,
        seed: int,
        model: str,
        device: str | torch.device,
        first: int = 0,
        reading: ReadingAhead | None = None,
    ) -> PartitionLoader:
        """Create the loader of the share.

        Args:
            source: the partition.
            hyperparams: contain the batch size.
            seed: the order's seed for this partition; see `order_seed`.
            model: key of the read-ahead settings.
            first: first batch of the first pass.
            reading: read-ahead settings, and their measurements.
        """
        batch_size = hyperparams["batch_size"]
        assert isinstance(batch_size, int)
        loader = PartitionLoader(
            source,
            batch_size=batch_size,
            seed=seed,
            device=device,
            first=first,
            share=self.share,
            merged=self.merged,
            drop_last=drops_last(hyperparams),
        )
        if reading is not None:
            is_on_host = torch.device(device).type == "cpu"
            loader.reading = reading.reading(model, batch_size, is_on_host=is_on_host)
        return loader
