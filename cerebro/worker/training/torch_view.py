"""The batches of a unit as a `torch.utils.data.DataLoader`, for libraries that ask for one.

It reads nothing by itself: it hands on what the unit's own loader hands out, so that heartbeats and the count of steps
are those of a loop over that one. A library may wrap it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from cerebro.errors import SpecError


class Batches(Protocol):
    """What is viewed: batches of (inputs, outputs), and how many there are."""

    def __iter__(self) -> Iterator[tuple[Any, Any]]: ...

    def __len__(self) -> int: ...


class TorchBatches(IterableDataset[Any]):
    """A data set whose items are whole batches.

    Args:
        arrange: makes of inputs and outputs what the library takes for a batch.
        on_begin: called when somebody begins to iterate.
    """

    def __init__(
        self, batches: Batches, arrange: Callable[[Any, Any], Any], on_begin: Callable[[], None]
    ) -> None:
        self._batches, self._arrange, self._on_begin = batches, arrange, on_begin

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info() is not None:
            raise SpecError(
                "dataloader.as_torch() is read by a process of a loader's own, of which each would hand out all rows: "
                "have the library use num_workers=0"
            )
        self._on_begin()
        for inputs, outputs in self._batches:
            yield self._arrange(inputs, outputs)

    def __len__(self) -> int:
        return len(self._batches)


def as_torch(
    batches: Batches, arrange: Callable[[Any, Any], Any] | None, on_begin: Callable[[], None]
) -> DataLoader[Any]:
    """The view. Batches are handed on as they are: neither collated, nor copied, nor read by other processes."""
    found = TorchBatches(batches, arrange or _pair, on_begin)
    return DataLoader(found, batch_size=None, collate_fn=_as_it_is)


def _pair(inputs: Any, outputs: Any) -> tuple[Any, Any]:
    return inputs, outputs


def _as_it_is(batch: Any) -> Any:
    return batch
