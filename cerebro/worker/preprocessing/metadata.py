"""A partition's metadata: rows as dicts of plain values, ids in their own type."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from cerebro.data.durable import checksum
from cerebro.errors import LocatorError, MetadataError


class Metadata:
    """The rows of one Arrow IPC file, memory-mapped. Made before processes are forked, read in each of them.

    Attributes:
        checksum: of the file, to tell whether shards were made from the same rows.
        id_type: Arrow type of the ids.
    """

    def __init__(self, path: Path) -> None:
        try:
            self.checksum = checksum(path).checksum
            options = pa.ipc.IpcReadOptions(use_threads=False)  # the process is going to fork
            with pa.memory_map(str(path)) as file:
                self._table = pa.ipc.open_file(file, options=options).read_all()
        except (OSError, pa.ArrowException) as error:
            raise LocatorError(f"partitioned metadata {path} cannot be read: {error}") from error
        if "id" not in self._table.column_names:
            raise MetadataError(
                f"{path} has no column 'id' (its columns: {', '.join(self._table.column_names)})"
            )
        self.id_type = self._table.schema.field("id").type
        if pa.types.is_dictionary(self.id_type):
            self.id_type = self.id_type.value_type
        if not (pa.types.is_integer(self.id_type) or _is_string(self.id_type)):
            raise MetadataError(f"{path} has ids of type {self.id_type}, expected whole numbers or strings")
        if self._table.column("id").null_count:
            raise MetadataError(f"{path} has rows without an id")

    @property
    def num_rows(self) -> int:
        """Rows of the partition."""
        return int(self._table.num_rows)

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns."""
        names: list[str] = self._table.column_names
        return names

    def rows(self, start: int, stop: int, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Rows ``start`` to ``stop`` (exclusive) as plain Python values; of these columns alone, if given."""
        table = self._table if columns is None else self._table.select(list(columns))
        rows: list[dict[str, Any]] = table.slice(start, stop - start).to_pylist()
        return rows

    def batch(self, start: int, stop: int) -> pa.RecordBatch:
        """Rows ``start`` to ``stop`` (exclusive), at least one, as Arrow columns over the file's own memory."""
        (batch,) = self._table.slice(start, stop - start).combine_chunks().to_batches()
        return batch


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
