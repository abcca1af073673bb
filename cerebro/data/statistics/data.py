"""Statistics of the columns and rows of a shard or partition, and their JSON form.

A worker writes a partition's statistics to the shared volume. Data sets of earlier versions have none.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cerebro.data.fields import Layout
from cerebro.data.files.durable import DurableFile
from cerebro.data.statistics.columns import ColumnStatistics
from cerebro.data.statistics.observation import observe_field, observe_ragged, sample_step
from cerebro.data.statistics.row_hashes import RowHashes, first_level, hashes_of
from cerebro.errors import DataError

log = logging.getLogger(__name__)

MAX_COLUMNS = 200
"""Maximum number of fields, and of metadata columns, with statistics."""
MAX_BYTES = 16 << 20
"""Maximum size of a file of statistics."""
_VERSION = 1
_SHARD_STEP, _MIN_STEP = 4, 8
_FAILED = "a shard has no statistics, because counting its rows failed; its rows are complete"


@dataclass(frozen=True, kw_only=True)
class DataStatistics:
    """Statistics of rows.

    Attributes:
        columns: columns of the metadata, then fields.
        omitted: number of columns without statistics, because there are too many.
        hashes: hashes of the rows' inputs.
    """

    columns: tuple[ColumnStatistics, ...] = ()
    omitted: int = 0
    hashes: RowHashes = field(default_factory=RowHashes)

    def to_json(self) -> str:
        """Return compact JSON text."""
        value = {
            "version": _VERSION,
            "columns": [column.to_json() for column in self.columns],
            "omitted": self.omitted,
            "hashes": self.hashes.to_json(),
        }
        return json.dumps(value, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> DataStatistics:
        """Return the statistics of a `to_json` text.

        Raises:
            DataError: the text is not one, such as after a change by hand.
        """
        try:
            value: Any = json.loads(text)
            if value["version"] != _VERSION:
                raise ValueError(f"version {value['version']}, expected {_VERSION}")
            return cls(
                columns=tuple(ColumnStatistics.from_json(column) for column in value["columns"]),
                omitted=int(value["omitted"]),
                hashes=RowHashes.from_json(value["hashes"]),
            )
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(
                f"the statistics of a partition are damaged ({error}): run the ETL again"
            ) from error


class ShardObserver:
    """Collects the statistics of one shard, batch by batch.

    An error while it counts ends the collection, but not the ETL.

    Args:
        rows: rows of the whole partition, which determine the sample.
        index: number of the shard. In large partitions, every `_SHARD_STEP`-th shard is sampled, because a sample has a
            fixed cost for each field.
    """

    def __init__(self, rows: int, index: int = 0) -> None:
        self._step = sample_step(rows)
        if self._step >= _MIN_STEP:
            self._step = 0 if index % _SHARD_STEP else self._step // _SHARD_STEP
        self._level = first_level(rows)
        self._columns: dict[str, list[ColumnStatistics]] = {}
        self._omitted = 0
        self._hashes: list[RowHashes] = []
        self._has_failed = False

    def observe(self, layout: Layout, columns: Sequence[Any]) -> None:
        """Add a batch.

        Args:
            columns: for each field an array with rows first, or offsets and entries of a ragged field.
        """
        if self._has_failed:
            return
        try:
            self._observe(layout, columns)
        except Exception:
            self._has_failed = True
            log.exception(_FAILED)

    def _observe(self, layout: Layout, columns: Sequence[Any]) -> None:
        self._omitted = max(0, len(layout.fields) - MAX_COLUMNS)
        for item, values in list(zip(layout.fields, columns, strict=True))[:MAX_COLUMNS]:
            self._columns.setdefault(item.name, []).append(
                observe_ragged(item, values[0], self._step)
                if item.is_ragged
                else observe_field(item, values, self._step)
            )
        inputs = sorted(
            (item.name, item.is_ragged, values)
            for item, values in zip(layout.fields, columns, strict=True)
            if item.name == "input" or item.name.startswith("input.")
        )
        if not inputs:
            return
        hashes = hashes_of(
            [values for _, is_ragged, values in inputs if not is_ragged],
            [values for _, is_ragged, values in inputs if is_ragged],
            self._level,
        )
        first = columns[0]
        rows = len(first[0]) - 1 if layout.fields[0].is_ragged else len(first)
        self._hashes.append(RowHashes.of(hashes, self._level, rows=rows))

    def result(self) -> DataStatistics | None:
        """Return the statistics of all batches; `None` after an error."""
        if self._has_failed:
            return None
        try:
            return DataStatistics(
                columns=tuple(map(ColumnStatistics.merge, self._columns.values())),
                omitted=self._omitted,
                hashes=RowHashes.merge(self._hashes),
            )
        except Exception:
            log.exception(_FAILED)
            return None


def merge_all(parts: Iterable[DataStatistics]) -> DataStatistics:
    """Return the statistics of all rows of some parts, with columns in the order of their first part."""
    columns: dict[tuple[str, str], list[ColumnStatistics]] = {}
    omitted, hashes = 0, []
    for part in parts:
        omitted = max(omitted, part.omitted)
        hashes.append(part.hashes)
        for column in part.columns:
            columns.setdefault((column.source, column.name), []).append(column)
    return DataStatistics(
        columns=tuple(map(ColumnStatistics.merge, columns.values())),
        omitted=omitted,
        hashes=RowHashes.merge(hashes),
    )


def write_statistics(path: Path, statistics: DataStatistics) -> None:
    """Replace a file of statistics, durably and atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = DurableFile(path)
    try:
        file.write(statistics.to_json().encode())
        file.commit()
    finally:
        file.discard()
