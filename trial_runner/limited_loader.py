"""A loader that ends when a trial has timed enough batches.

`trial_runner.trial` passes it to the user's `train` in place of a `PartitionLoader`. Before each batch, a `Stopwatch`
or an `Observed` decides whether the loader returns it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cerebro.data.loader import Batch, PartitionLoader
from cerebro.data.mapped import MappedRows
from cerebro.data.trees import map_leaves
from cerebro.ragged_rows import Ragged


class LimitedLoader(PartitionLoader):
    """A `PartitionLoader` that ends when `should_continue` returns False.

    User code sees the length and the rows of the whole partition. After the end, further passes are empty.

    Args:
        should_continue: called before each batch with the number of earlier batches; not called after the last batch of
            the partition.
        permuted: seed that permutes the rows of each batch; `None` keeps their order.

    Attributes:
        handed: number of batches returned.
        has_ended: True after `should_continue` returned False.
    """

    def __init__(
        self,
        rows: MappedRows,
        should_continue: Callable[[int], bool],
        *,
        batch_size: int,
        seed: int,
        device: torch.device | str,
        share: tuple[int, int] = (0, 1),
        permuted: int | None = None,
    ) -> None:
        super().__init__(rows, batch_size=batch_size, seed=seed, device=device, share=share)
        self._should_continue, self._permuted = should_continue, permuted
        self._permutation: NDArray[np.int64] | None = None
        self.handed, self.has_ended = 0, False

    def __iter__(self) -> Iterator[Batch]:
        if self.has_ended:
            return
        for batch in super().__iter__():
            self.has_ended = not self._should_continue(self.handed)
            if self.has_ended:
                return
            self.handed += 1
            yield self._reordered(batch)

    @property
    def positions(self) -> NDArray[np.int64]:
        """Positions of the current batch's rows, in their order."""
        return self._latest if self._permutation is None else self._latest[self._permutation]

    def _reordered(self, batch: Batch) -> Batch:
        if self._permuted is None:
            return batch
        count = len(self._latest)
        order = np.random.default_rng([self._permuted, self.handed]).permutation(count)
        self._permutation = order
        index = torch.from_numpy(order)
        inputs, outputs = batch
        return _select(inputs, index), _select(outputs, index)


def _select(tree: Any, index: torch.Tensor) -> Any:
    def select(leaf: torch.Tensor | Ragged) -> torch.Tensor | Ragged:
        return leaf[index] if isinstance(leaf, Ragged) else leaf.index_select(0, index.to(leaf.device))

    return map_leaves(select, tree)
