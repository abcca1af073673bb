"""A loader for trials: it hands out what a sub-epoch would, in its order, but ends when the trial has seen enough."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from cerebro.data.loader import Batch, PartitionLoader
from cerebro.data.mapped import MappedRows
from cerebro.data.trees import RowId, map_leaves
from cerebro.ragged_rows import Ragged


class EndingLoader(PartitionLoader):
    """A `PartitionLoader` that asks before each batch whether another one is wanted, and ends at the first no.

    User code sees the length and the rows of the partition, as ever. Once it has ended it hands out nothing more, in no
    further pass.

    Args:
        goes_on: called with the number of batches that were handed out; not after the last one of the partition.
        permuted: the rows of each batch come in another order, drawn from this seed; `None`: in their own.
    """

    def __init__(
        self,
        rows: MappedRows,
        goes_on: Callable[[int], bool],
        *,
        batch_size: int,
        seed: int,
        device: torch.device | str,
        share: tuple[int, int] = (0, 1),
        permuted: int | None = None,
    ) -> None:
        super().__init__(rows, batch_size=batch_size, seed=seed, device=device, share=share)
        self._goes_on, self._permuted = goes_on, permuted
        self._permutation: list[int] | None = None
        self.handed, self.has_ended = 0, False

    def __iter__(self) -> Iterator[Batch]:
        if self.has_ended:
            return
        for batch in super().__iter__():
            self.has_ended = not self._goes_on(self.handed)
            if self.has_ended:
                return
            self.handed += 1
            yield self._reordered(batch)

    @property
    def ids(self) -> list[RowId]:
        """Ids of the rows of the current batch, in its order."""
        found = super().ids
        return found if self._permutation is None else [found[row] for row in self._permutation]

    def _reordered(self, batch: Batch) -> Batch:
        if self._permuted is None:
            return batch
        count = len(self._latest)
        order = np.random.default_rng([self._permuted, self.handed]).permutation(count)
        self._permutation = order.tolist()
        index = torch.from_numpy(order)
        inputs, outputs = batch
        return _taken(inputs, index), _taken(outputs, index)


def _taken(tree: Any, index: torch.Tensor) -> Any:
    def taken(leaf: torch.Tensor | Ragged) -> torch.Tensor | Ragged:
        return leaf[index] if isinstance(leaf, Ragged) else leaf.index_select(0, index.to(leaf.device))

    return map_leaves(taken, tree)
