"""Batches of torch tensors from the partitions of a split: the data loader that user code is given.

The order of the rows is a permutation drawn from the seed alone (NumPy's PCG64): the same seed visits the
same rows in the same order on every machine.

On a CPU a batch is gathered when it is asked for. For another device the next batch is gathered by a thread,
for CUDA into pinned memory that is copied without blocking.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from cerebro.data.mapped import MappedRows, share_of
from cerebro.data.prefetch import prefetched
from cerebro.data.trees import RowId, rebuild
from cerebro.errors import DataError

Batch: TypeAlias = tuple[Any, Any]
"""(inputs, outputs): trees as the row function returned them, with tensors of shape (batch, *field shape)."""

_HostBatch: TypeAlias = tuple[NDArray[np.int64], list[torch.Tensor]]


class PartitionLoader:
    """Iterates over the rows of complete partitions in batches of (inputs, outputs) on ``device``.

    A pass yields every row once (with ``drop_last``, all but a last incomplete batch). With ``seed=None``
    rows come in stored order. With a seed they are shuffled; each further pass over the same loader has its
    own order, drawn from the seed and the number of the pass, so that a loop over several passes does not see
    one order again and again.

    Batches are the caller's: memory is never reused under them. One pass at a time; not for several threads.

    Args:
        source: folders of complete partitions, or their rows when already mapped (a process that lives across
            units maps once).
        batch_size: rows per batch; the last of a pass may have fewer.
        seed: a non-negative integer of any size, or None for stored order.
        on_batch: called before each batch with (its index in the pass, rows handed out before it); what it
            raises ends the pass.
        first: batch that the first pass begins with; those before it are not read.
        share: (which, of so many) of the ranks that read the same batches together: only its rows of each. A batch
            without a row for it gives it one that others have, too: `counts` tells.

    Raises:
        DataError: there are fewer rows than ``batch_size``, a partition is incomplete, or partitions do not
            fit.
        ShardCorruptError: a shard is missing or damaged.
    """

    def __init__(
        self,
        source: Sequence[Path] | MappedRows,
        *,
        batch_size: int,
        seed: int | None,
        device: str | torch.device = "cpu",
        drop_last: bool = False,
        on_batch: Callable[[int, int], None] | None = None,
        first: int = 0,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        self._rows = source if isinstance(source, MappedRows) else MappedRows.open(source)
        self._names = [field.name for field in self._rows.fields]
        self._bools = [field.name for field in self._rows.fields if field.dtype == "bool"]
        self._structure = {} if self._rows.layout is None else self._rows.layout.structure
        self._seed = seed
        self._device = torch.device(device)
        self._on_cpu = self._device.type == "cpu"
        self._drop_last = drop_last
        self._passes = 0
        self._latest = np.empty(0, np.int64)
        self.batch_size = batch_size
        self.on_batch = on_batch
        self.first = first
        self.share = share
        self.counts = (0, 0)
        """Of the batch that was yielded last: rows of this share, and of all shares."""
        if batch_size < 1:
            raise DataError(f"batch_size is {batch_size!r}, expected a whole number from 1")
        if not 0 <= first <= len(self):
            raise DataError(f"the first batch is {first}, expected one of the {len(self)} that there are")
        if seed is not None and seed < 0:
            raise DataError(f"seed is {seed}, expected a number of at least 0, or None for stored order")
        if batch_size > self.num_rows:
            raise DataError(
                f"batch_size {batch_size} is larger than the {self.num_rows} rows of {_named(source)}: "
                "use a smaller batch_size or more data"
            )

    @property
    def num_rows(self) -> int:
        """Rows of all partitions together."""
        return self._rows.num_rows

    @property
    def own_rows(self) -> int:
        """Rows that a pass hands out: of this share, and those that it was lent."""
        return sum(times * max(1, self._share_of(rows)) for times, rows in self._sizes())

    @property
    def shared_rows(self) -> int:
        """Rows of a pass that are of this share. Over all shares they add up to those of the pass."""
        return sum(times * self._share_of(rows) for times, rows in self._sizes())

    def _sizes(self) -> list[tuple[int, int]]:
        """How many batches of a pass have how many rows."""
        full, rest = divmod(self.num_rows, self.batch_size)
        return [(full, self.batch_size)] + ([(1, rest)] if rest and not self._drop_last else [])

    def _share_of(self, rows: int) -> int:
        begin, end = share_of(rows, *self.share)
        return end - begin

    @property
    def ids(self) -> list[RowId]:
        """Ids of the rows in the batch that was yielded last, in its order."""
        return self._rows.ids(self._latest)

    def stored_ids(self) -> list[RowId]:
        """Ids of all rows in stored order, which is the order of a pass with ``seed=None``."""
        return self._rows.ids()

    def __len__(self) -> int:
        full, rest = divmod(self.num_rows, self.batch_size)
        return full if self._drop_last or rest == 0 else full + 1

    def __iter__(self) -> Iterator[Batch]:
        first = 0 if self._passes else self.first
        order = self._order()[first * self.batch_size :]
        host = self._gathered(order)
        if not self._on_cpu:
            host = prefetched(host)
        with closing(host):
            for index, (rows, columns) in enumerate(host, first):
                if self.on_batch is not None:
                    self.on_batch(index, index * self.batch_size)
                self._latest = rows
                whole = min(self.batch_size, self.num_rows - index * self.batch_size)
                self.counts = self._share_of(whole), whole
                batch = self._batch(columns)
                columns.clear()
                yield batch
                del batch  # before the next is gathered: its memory, still in the cache, is used again

    def iter_with_ids(self) -> Iterator[tuple[Any, Any, list[RowId]]]:
        """Like iteration, with the ids of each batch's rows as a third value."""
        for inputs, outputs in self:
            yield inputs, outputs, self.ids

    def _order(self) -> NDArray[np.int64]:
        number, self._passes = self._passes, self._passes + 1
        if self._seed is None:
            order = np.arange(self.num_rows, dtype=np.int64)
        else:
            sequence = np.random.SeedSequence(self._seed, spawn_key=(number,))
            order = np.random.Generator(np.random.PCG64(sequence)).permutation(self.num_rows)
        return order[: len(self) * self.batch_size]

    def _gathered(self, order: NDArray[np.int64]) -> Generator[_HostBatch, None, None]:
        """Batches in host memory: the rows' positions, and their columns, which the consumer removes."""
        pin = self._device.type == "cuda"
        for rows, arrays in self._rows.batches(order, self.batch_size, self.share):
            columns = [torch.from_numpy(array) for array in arrays]
            arrays.clear()
            yield rows, [column.pin_memory() for column in columns] if pin else columns

    def _batch(self, host: list[torch.Tensor]) -> Batch:
        columns = dict(zip(self._names, host, strict=True))
        for name in self._bools:
            columns[name] = columns[name].view(torch.bool)
        if not self._on_cpu:
            # Pinned memory is not reused before the copy ends: torch's allocator of it sees to that.
            columns = {name: column.to(self._device, non_blocking=True) for name, column in columns.items()}
        return rebuild(self._structure["input"], columns), rebuild(self._structure["output"], columns)


def _named(source: Sequence[Path] | MappedRows) -> str:
    if isinstance(source, MappedRows):
        return "the partitions"
    return "the partition " + str(source[0]) if len(source) == 1 else f"the {len(source)} partitions"
