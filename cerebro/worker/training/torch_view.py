"""A sub-epoch's batches as a `torch.utils.data.DataLoader`, for libraries that require one.

`InstrumentedLoader.as_torch` returns it to user code. It returns the batches of the sub-epoch's own loader, so
heartbeats and step counts are the same. A library may wrap it, but not read it in loader processes.

Such a library often seeds all generators with a fixed number before its loop: then each sub-epoch would draw the same
dropout masks. So the generators are restored when the library requests its first batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from cerebro.errors import SpecError
from cerebro.worker.training.seeds import generator_states, restore_generator_states


class Batches(Protocol):
    """The source of a view: (inputs, outputs) batches. `len()` counts batches, `num_rows` rows."""

    num_rows: int

    def __iter__(self) -> Iterator[tuple[Any, Any]]: ...

    def __len__(self) -> int: ...


class TorchBatches(IterableDataset[Any]):
    """A data set with batches as items; its length is the number of rows.

    Args:
        arrange: converts inputs and outputs to the library's batch.
        on_begin: called at the start of an iteration.
    """

    def __init__(
        self, batches: Batches, arrange: Callable[[Any, Any], Any], on_begin: Callable[[], None]
    ) -> None:
        self.batches, self._arrange, self._on_begin = batches, arrange, on_begin
        self._seed, self._generators = torch.initial_seed(), generator_states()
        self._has_begun = False

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info() is not None:
            raise SpecError(
                "dataloader.as_torch() is read by a process of a loader's own, of which each would hand out all rows: "
                "have the library use num_workers=0"
            )
        if not self._has_begun and torch.initial_seed() != self._seed:
            restore_generator_states(self._generators)
        self._has_begun = True
        self._on_begin()
        for inputs, outputs in self.batches:
            yield self._arrange(inputs, outputs)

    def __len__(self) -> int:
        return self.batches.num_rows


class TorchView(DataLoader[Any]):
    """A loader whose length is the number of batches; `dataset` counts rows."""

    dataset: TorchBatches

    def __len__(self) -> int:
        return len(self.dataset.batches)


def as_torch(
    batches: Batches, arrange: Callable[[Any, Any], Any] | None, on_begin: Callable[[], None]
) -> TorchView:
    """Make the view. It yields the same batch objects: no collation, no copies, no loader processes."""
    found = TorchBatches(batches, arrange or _pair, on_begin)
    # A separate generator: torch's loader draws a seed for loader processes even if it starts none.
    return TorchView(found, batch_size=None, collate_fn=_unchanged, generator=torch.Generator())


def _pair(inputs: Any, outputs: Any) -> tuple[Any, Any]:
    return inputs, outputs


def _unchanged(batch: Any) -> Any:
    return batch
