"""Manifests of a partition's folder: its shards, and the rows in, out and failed.

    {root}/{dataset}/{split}/partition-0003/
        shard-00000-1f2e3d4c.arrow   rows of a shard; the random part keeps attempts apart
        shard-00000.json             its manifest, written later: the shard is complete
        plan.json                    row ranges of the shards, for a resumed attempt
        statistics.json              statistics of the partition's columns and rows
        partition.json               written last: the partition is complete

ETL tasks create manifests (`etl_worker`, `ShardWriter`); loaders read them. Each file appears atomically, so every
readable file is complete. A shard's rows in equal its rows out plus failed rows; its manifest refuses other numbers.
`partitions` reads and writes the files. The module does not know Arrow or tensors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from cerebro.data.fields import Layout
from cerebro.data.files.durable import Written
from cerebro.data.statistics.data import DataStatistics
from cerebro.data.trees import RowId
from cerebro.errors import DataError

SCHEMA_VERSION = 1

NAMED_ROWS = 20
"""Maximum number of failed rows in an error message."""


@dataclass(frozen=True, kw_only=True)
class FailedRow:
    """A row whose function raised: id, error in one line, traceback."""

    id: RowId
    error: str
    traceback: str


@dataclass(frozen=True, kw_only=True)
class Source:
    """The inputs of a shard. Shards with different sources are never mixed.

    Attributes:
        fingerprint: identifies spec, locators, seed and fraction.
        metadata: checksum of the partition's metadata file.
    """

    fingerprint: str
    metadata: str


@dataclass(frozen=True, kw_only=True)
class ShardManifest:
    """A complete shard: rows `start` to `stop` (exclusive) of the partition's metadata.

    Attributes:
        file: name of the Arrow file in the partition's folder.
        failed: rows of the range that are not in the file.
        layout: layout of its rows; `None` without rows.
        statistics: statistics of its rows; `None` if the writer collected none.
    """

    index: int
    file: str
    start: int
    stop: int
    source: Source
    rows_out: int
    failed: tuple[FailedRow, ...]
    written: Written
    layout: Layout | None
    statistics: DataStatistics | None = None

    def __post_init__(self) -> None:
        if self.rows_in != self.rows_out + len(self.failed):
            raise DataError(
                f"shard {self.index}: {self.rows_in} rows in, "
                f"but {self.rows_out} out and {len(self.failed)} failed"
            )

    @property
    def rows_in(self) -> int:
        """Metadata rows of the shard."""
        return self.stop - self.start

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "schema_version": SCHEMA_VERSION,
            **asdict(replace(self, statistics=None)),
            "rows_in": self.rows_in,
            "layout": None if self.layout is None else self.layout.to_json(),
            # As one text, because indented JSON of many numbers is slow to write.
            "statistics": None if self.statistics is None else self.statistics.to_json(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ShardManifest:
        """Return the manifest of a `to_json` object."""
        return cls(
            index=value["index"],
            file=value["file"],
            start=value["start"],
            stop=value["stop"],
            source=Source(**value["source"]),
            rows_out=value["rows_out"],
            failed=tuple(FailedRow(**row) for row in value["failed"]),
            written=Written(**value["written"]),
            layout=None if value["layout"] is None else Layout.from_json(value["layout"]),
            statistics=DataStatistics.from_json(value["statistics"]) if value.get("statistics") else None,
        )


@dataclass(frozen=True, kw_only=True)
class ShardEntry:
    """A shard in the partition's manifest."""

    index: int
    file: str
    start: int
    stop: int
    rows_out: int
    rows_failed: int
    written: Written

    @classmethod
    def of(cls, shard: ShardManifest) -> ShardEntry:
        """Return the entry of a complete shard."""
        return cls(
            index=shard.index,
            file=shard.file,
            start=shard.start,
            stop=shard.stop,
            rows_out=shard.rows_out,
            rows_failed=len(shard.failed),
            written=shard.written,
        )


@dataclass(frozen=True, kw_only=True)
class PartitionManifest:
    """A complete partition; `layout` is `None` without rows."""

    source: Source
    shards: tuple[ShardEntry, ...]
    layout: Layout | None

    @property
    def rows_in(self) -> int:
        """Rows of its metadata."""
        return sum(shard.stop - shard.start for shard in self.shards)

    @property
    def rows_out(self) -> int:
        """Rows for training."""
        return sum(shard.rows_out for shard in self.shards)

    @property
    def rows_failed(self) -> int:
        """Rows whose function raised."""
        return sum(shard.rows_failed for shard in self.shards)

    @property
    def num_bytes(self) -> int:
        """Bytes of its shards on disk."""
        return sum(shard.written.num_bytes for shard in self.shards)

    @property
    def checksum(self) -> str:
        """Checksum of all rows on disk, as `sha256:<hex>`. The same rows in other shards have another one."""
        facts = [(shard.start, shard.stop, shard.rows_out, shard.written.checksum) for shard in self.shards]
        return f"sha256:{hashlib.sha256(repr(facts).encode()).hexdigest()}"

    @classmethod
    def of(cls, source: Source, shards: list[ShardManifest]) -> PartitionManifest:
        """Return the partition that consists of these shards.

        Raises:
            DataError: rows are missing or overlap.
        """
        shards = sorted(shards, key=lambda shard: shard.index)
        expected = 0
        for shard in shards:
            if shard.start != expected:
                raise DataError(f"shard {shard.index} starts at row {shard.start}, expected row {expected}")
            expected = shard.stop
        layouts = [shard.layout for shard in shards if shard.layout is not None]
        for layout in layouts[1:]:
            layouts[0].check_layout(layout)
        entries = tuple(ShardEntry.of(shard) for shard in shards)
        return cls(source=source, shards=entries, layout=layouts[0] if layouts else None)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; totals are included for human readers."""
        return {
            "schema_version": SCHEMA_VERSION,
            "source": asdict(self.source),
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "rows_failed": self.rows_failed,
            "num_bytes": self.num_bytes,
            "layout": None if self.layout is None else self.layout.to_json(),
            "shards": [asdict(shard) for shard in self.shards],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> PartitionManifest:
        """Return the manifest of a `to_json` object."""
        return cls(
            source=Source(**value["source"]),
            shards=tuple(
                ShardEntry(**{**shard, "written": Written(**shard["written"])}) for shard in value["shards"]
            ),
            layout=None if value["layout"] is None else Layout.from_json(value["layout"]),
        )


def named_rows(rows: Sequence[FailedRow]) -> str:
    """List failed rows without tracebacks, equal errors once with their number, to append to a sentence.

    The sentence must make sense alone and has no final colon, because some displays show the first line only.
    """
    errors: dict[str, list[FailedRow]] = {}
    for row in rows[:NAMED_ROWS]:
        errors.setdefault(row.error.partition("\n")[0], []).append(row)
    lines = [
        f"  row {first.id!r}{f' and {len(same)} more' if same else ''}: {error}"
        for error, (first, *same) in errors.items()
    ]
    more = [f"  and {len(rows) - NAMED_ROWS:,} more"] if len(rows) > NAMED_ROWS else []
    return "\n".join(["", *lines, *more])
