"""The data loader that training code iterates over: batches of torch tensors from the partitions of a split.

The training process opens it for a task's partitions on its local volume (`cerebro.worker.training`, `model_hopper`,
`trial_runner`). Nothing is downloaded or written here.

The row order is a permutation that depends on the seed only (NumPy's PCG64), so a seed gives the same order on every
machine. On a CPU, a batch is gathered when it is requested. For another device, a thread gathers the next batch; for
CUDA it is in pinned memory and copied without blocking. Earlier passes may show that more threads help
(`cerebro.data.prefetch_tuning`); batches and their order stay the same.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from cerebro.contract.records import batches_of
from cerebro.data.fields import Field
from cerebro.data.mapped import Gathering, MappedPartition, MappedRows, share_of
from cerebro.data.merged import Merged, bounds_in_batches, merged_order
from cerebro.data.prefetch import made_ahead
from cerebro.data.prefetch_tuning import NEXT_ONE, ON_DEMAND, PassTimes, Reading
from cerebro.data.trees import Array, RowId, rebuild
from cerebro.errors import DataError
from cerebro.ragged_rows import Ragged

Batch: TypeAlias = tuple[Any, Any]
"""(inputs, outputs): trees as the row function returned them, with tensors of shape (batch, *field shape).

Fields marked as ragged are a `Ragged` of tensors.
"""

_Column: TypeAlias = torch.Tensor | Ragged
_HostBatch: TypeAlias = tuple[NDArray[np.int64], list[_Column]]


class PartitionLoader:
    """Iterates over complete partitions in batches of (inputs, outputs) on `device`.

    A pass yields every row once. With `seed=None` rows have stored order. With a seed they are shuffled, and each pass
    has its own order from the seed and the number of the pass.

    The caller owns the batches; their memory is not reused. Use one pass at a time, and one thread.

    Args:
        source: folders of complete partitions, or mapped rows.
        batch_size: rows per batch; the last batch of a pass may have fewer.
        seed: non-negative integer of any size, or `None` for stored order.
        device: device of the batches. Default: the CPU.
        first: first batch of the first pass; earlier batches are not read.
        share: (index, number of ranks): the loader yields only this rank's rows of each batch. If a batch has no row
            for the rank, the loader yields one row of another rank, so that ranks stay in step; see `counts`.
        drop_last: True to skip a last batch with fewer rows.
        merged: partitions that several workers read together, `source` included. Batches, their number and
            `num_rows` refer to all partitions, but only rows of `source` are read.

    Raises:
        DataError: there are fewer rows than `batch_size`, a partition is incomplete, or partitions have different
            fields.
        ShardCorruptError: a shard is missing or damaged.
    """

    def __init__(
        self,
        source: Sequence[Path] | MappedRows,
        *,
        batch_size: int,
        seed: int | None,
        device: str | torch.device = "cpu",
        first: int = 0,
        share: tuple[int, int] = (0, 1),
        merged: Merged | None = None,
        drop_last: bool = False,
    ) -> None:
        self._drop_last = drop_last
        self._rows = source if isinstance(source, MappedRows) else MappedRows.open(source)
        self._names = [field.name for field in self._rows.fields]
        self._structure = {} if self._rows.layout is None else self._rows.layout.structure
        self._seed = seed
        self._device = torch.device(device)
        self._on_cpu = self._device.type == "cpu"
        self._merged = merged
        self._passes = 0
        self._latest = np.empty(0, np.int64)
        self.batch_size = batch_size
        self.first = first
        self.share = share
        self.reading: Reading | None = None
        """How batches are gathered ahead; `None` uses the defaults."""
        self.counts = (0, 0)
        """Rows of the latest batch: in this share, and in all shares."""
        if batch_size < 1:
            raise DataError(f"batch_size is {batch_size!r}, expected a whole number from 1")
        if not 0 <= first <= len(self):
            raise DataError(f"the first batch is {first}, expected one of the {len(self)} that there are")
        if seed is not None and seed < 0:
            raise DataError(f"seed is {seed}, expected a number of at least 0, or None for stored order")
        if merged is not None and merged.rows[merged.number] != self._rows.num_rows:
            raise DataError(
                f"{_describe(source)} has {self._rows.num_rows} rows, but the workers that read it with others expect "
                f"{merged.rows[merged.number]}"
            )
        self._bounds = self._make_bounds()
        if batch_size > self.num_rows:
            raise DataError(
                f"batch_size {batch_size} is larger than the {self.num_rows} rows of {_describe(source)}: "
                "use a smaller batch_size or more data"
            )

    @property
    def num_rows(self) -> int:
        """Rows of all partitions, including rows that other workers read."""
        return self._rows.num_rows if self._merged is None else self._merged.num_rows

    @property
    def own_rows(self) -> int:
        """Rows that a pass yields: the rank's share, and rows of other ranks for batches without one."""
        return sum(times * max(1, self._share_of(rows)) for rows, times in self._sizes())

    @property
    def shared_rows(self) -> int:
        """Rows of a pass in the rank's share; the shares of all ranks add up to the pass."""
        return sum(times * self._share_of(rows) for rows, times in self._sizes())

    def _sizes(self) -> list[tuple[int, int]]:
        """Return (rows of the source in a batch, number of such batches) for each distinct size."""
        rows, times = np.unique(np.diff(self._bounds), return_counts=True)
        return list(zip(rows.tolist(), times.tolist(), strict=True))

    def _make_bounds(self) -> NDArray[np.int64]:
        """Return where batches begin and end among the source's rows."""
        if self._merged is not None:
            return bounds_in_batches(self._merged, self.batch_size)[: len(self) + 1]
        return np.minimum(np.arange(len(self) + 1, dtype=np.int64) * self.batch_size, self.num_rows)

    def _share_of(self, rows: int) -> int:
        begin, end = share_of(rows, *self.share)
        return end - begin

    @property
    def ids(self) -> list[RowId]:
        """Ids of the rows in the latest batch, in its order."""
        return self._rows.ids(self.positions)

    @property
    def positions(self) -> NDArray[np.int64]:
        """Positions of the rows in the latest batch, in its order, over all partitions in stored order."""
        return self._latest

    @property
    def partitions(self) -> Sequence[MappedPartition]:
        """The partitions, in stored order."""
        return self._rows.partitions

    @property
    def input_names(self) -> Any:
        """Names of the fields of an input, nested as the input; `None` without rows."""
        return rebuild(self._structure.get("input"), {name: name for name in self._names})

    def columns(
        self, rows: NDArray[np.int64], names: Sequence[str], device: str | torch.device
    ) -> dict[str, _Column]:
        """Return some fields of rows, as in a batch.

        Args:
            rows: positions over all partitions in stored order, at least one.
            names: names of the fields.
        """
        (planned,) = self._rows.planned(rows, np.array([0, len(rows)]))
        fields = [field for field in self._rows.fields if field.name in names]
        columns = as_columns(fields, planned.columns(None, map(self._names.index, (f.name for f in fields))))
        return {name: column.to(device) for name, column in columns.items()}

    def stored_ids(self) -> list[RowId]:
        """Return the ids of all rows in stored order, which is the order of a pass with `seed=None`."""
        return self._rows.ids()

    def __len__(self) -> int:
        return batches_of(self.num_rows, self.batch_size, drop_last=self._drop_last)

    def __iter__(self) -> Iterator[Batch]:
        first = 0 if self._passes else self.first
        clock = _PassClock() if self.reading is not None else None
        host = self._gathered(self._order(), self._bounds[first:], clock)
        with closing(host):
            for index, (rows, columns) in enumerate(host, first):
                self._latest = rows
                global_rows = min(self.batch_size, self.num_rows - index * self.batch_size)
                source_rows = int(self._bounds[index + 1] - self._bounds[index])
                self.counts = self._share_of(source_rows), global_rows
                batch = self._batch(columns)
                columns.clear()
                if clock is not None:
                    clock.start_step()
                yield batch
                del batch  # free it before the next is gathered, which reuses its cached memory
                if clock is not None:
                    clock.end_step()
        if clock is not None and self.reading is not None:
            self.reading.on_pass(clock.times())

    def _order(self) -> NDArray[np.int64]:
        number, self._passes = self._passes, self._passes + 1
        if self._seed is None:
            return np.arange(self._rows.num_rows, dtype=np.int64)
        return _shuffled(self._rows.num_rows, self._seed, number)

    def _gathered(
        self, order: NDArray[np.int64], bounds: NDArray[np.int64], clock: _PassClock | None
    ) -> Generator[_HostBatch, None, None]:
        """Yield row positions and columns of batches in host memory; the consumer clears the columns."""
        pin = self._device.type == "cuda"

        def gather(planned: Gathering) -> _HostBatch:
            arrays = planned.columns(_pinned_bytes if pin else None)
            columns: list[_Column] = [_in_tensors(array) for array in arrays]
            return planned.rows, [_pinned(column) for column in columns] if pin else columns

        make = gather if clock is None else clock.timed(gather)
        planned = self._rows.planned(order, bounds, self.share)
        ahead = self.reading.ahead if self.reading else ON_DEMAND if self._on_cpu else NEXT_ONE
        if ahead.threads:
            jobs = (partial(make, each) for each in planned)
            yield from made_ahead(jobs, threads=ahead.threads, depth=ahead.depth)
        else:
            yield from map(make, planned)

    def _batch(self, host: list[_Column]) -> Batch:
        columns = _named(self._rows.fields, host)
        if not self._on_cpu:
            # torch's pinned-memory allocator does not reuse memory before the copy ends.
            columns = {name: column.to(self._device, non_blocking=True) for name, column in columns.items()}
        return rebuild(self._structure["input"], columns), rebuild(self._structure["output"], columns)


class _PassClock:
    """Measures a pass; several threads may gather at the same time."""

    def __init__(self) -> None:
        self._gathered: list[tuple[int, float, float, int]] = []
        """(rows, seconds, seconds without storage waits, bytes) of each batch; appending is atomic."""
        self._step_s, self._used, self._step_started = 0.0, 0, 0.0

    def timed(self, gather: Callable[[Gathering], _HostBatch]) -> Callable[[Gathering], _HostBatch]:
        def measured(planned: Gathering) -> _HostBatch:
            faults, began, busy = _read_faults(), time.perf_counter(), time.thread_time()
            batch = gather(planned)
            elapsed_s, busy_s = time.perf_counter() - began, time.thread_time() - busy
            if _read_faults() == faults:
                busy_s = elapsed_s  # no page fault, so it did not wait for storage
            self._gathered.append((len(batch[0]), elapsed_s, busy_s, sum(map(_bytes, batch[1]))))
            return batch

        return measured

    def start_step(self) -> None:
        """Record that the consumer starts to use a batch."""
        self._step_started = time.perf_counter()

    def end_step(self) -> None:
        """Record that the consumer requests the next batch."""
        self._step_s += time.perf_counter() - self._step_started
        self._used += 1

    def times(self) -> PassTimes:
        rows, gather_s, busy_s, num_bytes = (
            map(sum, zip(*self._gathered, strict=True)) if self._gathered else (0,) * 4
        )
        return PassTimes(int(rows), gather_s, busy_s, self._step_s, self._used, int(num_bytes))


class MergedLoader(PartitionLoader):
    """Reads several partitions alone, in the batches that several workers would read together.

    Batches have the same rows as with `Merged`, in another order within a batch.

    Args:
        folders: folders of the partitions.
        batch_size: rows per batch.
        seeds: seed of each partition.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        *,
        batch_size: int,
        seeds: Sequence[int],
        device: str | torch.device = "cpu",
        drop_last: bool = False,
    ) -> None:
        super().__init__(folders, batch_size=batch_size, seed=seeds[0], device=device, drop_last=drop_last)
        self._seeds = seeds
        self._counts = [MappedRows.open([folder]).num_rows for folder in folders]

    def _order(self) -> NDArray[np.int64]:
        number, self._passes = self._passes, self._passes + 1
        shuffled = [_shuffled(*each, number) for each in zip(self._counts, self._seeds, strict=True)]
        begins = np.cumsum([0, *self._counts[:-1]])
        rows = np.concatenate([begin + order for begin, order in zip(begins, shuffled, strict=True)])
        merged: NDArray[np.int64] = rows[merged_order(self._counts)]
        return merged


def as_columns(fields: Sequence[Field], arrays: Sequence[Array | Ragged]) -> dict[str, _Column]:
    """Return gathered arrays as tensors by field name, in host memory."""
    return _named(fields, list(map(_in_tensors, arrays)))


def _named(fields: Sequence[Field], columns: Sequence[_Column]) -> dict[str, _Column]:
    named = {field.name: column for field, column in zip(fields, columns, strict=True)}
    return named | {field.name: _as_bools(named[field.name]) for field in fields if field.dtype == "bool"}


def _in_tensors(array: Array | Ragged) -> _Column:
    return array.map(torch.from_numpy) if isinstance(array, Ragged) else torch.from_numpy(array)


def _read_faults() -> int:
    """Return how often this thread has waited for a page of a file."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


def _bytes(column: _Column) -> int:
    return int(column.values.nbytes if isinstance(column, Ragged) else column.nbytes)


def _pinned_bytes(num_bytes: int) -> NDArray[np.uint8]:
    """Return pinned memory, which torch's allocator reuses after the copies from it."""
    memory: NDArray[np.uint8] = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True).numpy()
    return memory


def _pinned(column: _Column) -> _Column:
    """Return the column in pinned memory; itself if it is there."""
    return column.map(torch.Tensor.pin_memory) if isinstance(column, Ragged) else column.pin_memory()


def _as_bools(column: _Column) -> _Column:
    if isinstance(column, Ragged):
        return column.with_values(column.values.view(torch.bool))
    return column.view(torch.bool)


def _shuffled(rows: int, seed: int, number: int) -> NDArray[np.int64]:
    """Return the row order of a pass."""
    sequence = np.random.SeedSequence(seed, spawn_key=(number,))
    return np.random.Generator(np.random.PCG64(sequence)).permutation(rows)


def _describe(source: Sequence[Path] | MappedRows) -> str:
    if isinstance(source, MappedRows):
        return "the partitions"
    return "the partition " + str(source[0]) if len(source) == 1 else f"the {len(source)} partitions"
