"""A partition's metadata: rows as dicts of plain values, ids in their own type.

The controller writes the Arrow file on the shared volume when a run starts; `etl_worker`, `shard.py` and `fit_pass.py`
read it here. Nothing is written.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from cerebro.data.files.durable import checksum
from cerebro.data.statistics.data import MAX_COLUMNS, DataStatistics
from cerebro.data.statistics.observation import observe_metadata
from cerebro.data.tables.whole_tables import is_text
from cerebro.errors import LocatorError, MetadataError
from cerebro.runtime.volume_errors import NO_MEMORY, volume_errors_named


class Metadata:
    """The rows of one Arrow IPC file, memory-mapped. Created before forking, read in each process.

    Attributes:
        checksum: the file's checksum, to detect shards of other rows.
        id_type: Arrow type of the ids.
    """

    def __init__(self, path: Path) -> None:
        try:
            with volume_errors_named(path.parent, also=NO_MEMORY):
                self.checksum = checksum(path).checksum
                options = pa.ipc.IpcReadOptions(use_threads=False)  # the process is going to fork
                with pa.memory_map(str(path)) as file:
                    reader = pa.ipc.open_file(file, options=options)
                    self._schema = reader.schema
                    self._batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        except (OSError, pa.ArrowException) as error:
            raise LocatorError(f"partitioned metadata {path} cannot be read: {error}") from error
        if "id" not in self.columns:
            raise MetadataError(f"{path} has no column 'id' (its columns: {', '.join(self.columns)})")
        # A large table has many batches: find a row's batch by bisection.
        self._ends = list(itertools.accumulate(batch.num_rows for batch in self._batches))
        self.id_type = self._schema.field("id").type
        if pa.types.is_dictionary(self.id_type):
            self.id_type = self.id_type.value_type
        if not (pa.types.is_integer(self.id_type) or is_text(self.id_type)):
            raise MetadataError(f"{path} has ids of type {self.id_type}, expected whole numbers or strings")
        if any(batch.column("id").null_count for batch in self._batches):
            raise MetadataError(f"{path} has rows without an id")

    @property
    def num_rows(self) -> int:
        """Rows of the partition."""
        return self._ends[-1] if self._ends else 0

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns."""
        names: list[str] = self._schema.names
        return names

    def rows(self, start: int, stop: int, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Return rows ``start`` to ``stop`` (exclusive) as plain Python values, with all columns or only `columns`."""
        table = pa.Table.from_batches(self._parts(start, stop), self._schema)
        rows: list[dict[str, Any]] = (table if columns is None else table.select(list(columns))).to_pylist()
        return rows

    def batch(self, start: int, stop: int, kept: Sequence[int] | None = None) -> pa.RecordBatch:
        """Return rows ``start`` to ``stop`` (exclusive), at least one, as Arrow columns.

        Zero-copy unless they span several of the file's batches.

        Args:
            kept: positions relative to ``start`` to copy instead; may have no items.
        """
        first, *next_batches = self._parts(start, stop)
        joined = pa.concat_batches([first, *next_batches]) if next_batches else first
        return joined if kept is None else joined.take(pa.array(kept, pa.int64()))

    def statistics(self) -> DataStatistics:
        """Return the statistics of the columns, except the id."""
        names = [name for name in self.columns if name != "id"]
        return DataStatistics(
            columns=tuple(observe_metadata(self._batches, name) for name in names[:MAX_COLUMNS]),
            omitted=max(0, len(names) - MAX_COLUMNS),
        )

    def _parts(self, start: int, stop: int) -> list[pa.RecordBatch]:
        """Return the rows as non-empty slices of the file's batches."""
        parts = []
        number = bisect.bisect_right(self._ends, start)
        while start < min(stop, self.num_rows):
            batch, end = self._batches[number], self._ends[number]
            parts.append(batch.slice(start - (end - batch.num_rows), min(stop, end) - start))
            start, number = min(stop, end), number + 1
        return [part for part in parts if part.num_rows]
