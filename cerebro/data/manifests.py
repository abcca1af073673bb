"""What a partition's folder holds, as its manifests say: shards, rows in, rows out, rows failed.

    {root}/{dataset}/{split}/partition-0003/
        shard-00000-1f2e3d4c.arrow   rows of one shard (`shards`); the random part keeps two attempts apart
        shard-00000.json             its manifest, written after it: the shard is complete
        plan.json                    how the rows are cut into shards, for whoever resumes
        partition.json               written last: the partition is complete

Each file appears in one step, so whatever is readable is whole. Rows in are rows out plus rows failed,
always; a manifest that says otherwise cannot be made. The files themselves are read and written in
`partitions`; Arrow and tensors are not known here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cerebro.data.durable import Written
from cerebro.data.fields import Layout
from cerebro.data.trees import RowId
from cerebro.errors import DataError

SCHEMA_VERSION = 1

NAMED_ROWS = 20
"""Failed rows that an error names at most."""


@dataclass(frozen=True, kw_only=True)
class FailedRow:
    """A row whose function raised: its id, the error in a line, and the traceback."""

    id: RowId
    error: str
    traceback: str


@dataclass(frozen=True, kw_only=True)
class Source:
    """What shards were made from. Shards of another source are never mixed in.

    Attributes:
        fingerprint: names spec, locators, seed and fraction; given by the caller.
        metadata: checksum of the partition's metadata file.
    """

    fingerprint: str
    metadata: str


@dataclass(frozen=True, kw_only=True)
class ShardManifest:
    """A complete shard: rows ``start`` to ``stop`` (exclusive) of the partition's metadata.

    Attributes:
        file: name of the Arrow file in the partition's folder.
        failed: rows of the range that are not in the file.
        layout: of its rows; None when there are none.
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

    def __post_init__(self) -> None:
        if self.rows_in != self.rows_out + len(self.failed):
            raise DataError(
                f"shard {self.index}: {self.rows_in} rows in, "
                f"but {self.rows_out} out and {len(self.failed)} failed"
            )

    @property
    def rows_in(self) -> int:
        """Rows of the metadata this shard stands for."""
        return self.stop - self.start

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "schema_version": SCHEMA_VERSION,
            **asdict(self),
            "rows_in": self.rows_in,
            "layout": None if self.layout is None else self.layout.to_json(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ShardManifest:
        """The inverse of `to_json`."""
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
        )


@dataclass(frozen=True, kw_only=True)
class ShardEntry:
    """A shard as the partition's manifest lists it."""

    index: int
    file: str
    start: int
    stop: int
    rows_out: int
    rows_failed: int
    written: Written

    @classmethod
    def of(cls, shard: ShardManifest) -> ShardEntry:
        """The entry of a complete shard."""
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
    """A complete partition. ``layout`` is None when it has no rows."""

    source: Source
    shards: tuple[ShardEntry, ...]
    layout: Layout | None

    @property
    def rows_in(self) -> int:
        """Rows of its metadata."""
        return sum(shard.stop - shard.start for shard in self.shards)

    @property
    def rows_out(self) -> int:
        """Rows that can be trained on."""
        return sum(shard.rows_out for shard in self.shards)

    @property
    def rows_failed(self) -> int:
        """Rows whose function raised."""
        return sum(shard.rows_failed for shard in self.shards)

    @property
    def num_bytes(self) -> int:
        """Size of its shards on disk."""
        return sum(shard.written.num_bytes for shard in self.shards)

    @property
    def checksum(self) -> str:
        """Of all its rows as they lie on disk, as ``sha256:<hex>``; other rows, or another cut, have another."""
        facts = [(shard.start, shard.stop, shard.rows_out, shard.written.checksum) for shard in self.shards]
        return f"sha256:{hashlib.sha256(repr(facts).encode()).hexdigest()}"

    @classmethod
    def of(cls, source: Source, shards: list[ShardManifest]) -> PartitionManifest:
        """The partition made of ``shards``, in row order; DataError where rows lack or overlap."""
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
        """JSON-able form; totals are included for whoever reads the file."""
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
        """The inverse of `to_json`."""
        return cls(
            source=Source(**value["source"]),
            shards=tuple(
                ShardEntry(**{**shard, "written": Written(**shard["written"])}) for shard in value["shards"]
            ),
            layout=None if value["layout"] is None else Layout.from_json(value["layout"]),
        )


def named_rows(rows: Sequence[FailedRow]) -> str:
    """Failed rows in words, to be put behind a sentence: a line per row. Their tracebacks are left out.

    The sentence has no colon at its end: where there is one line only, it stands alone.
    """
    told = [f"  row {row.id!r}: {row.error.partition(chr(10))[0]}" for row in rows[:NAMED_ROWS]]
    more = [f"  and {len(rows) - NAMED_ROWS:,} more"] if len(rows) > NAMED_ROWS else []
    return "\n".join(["", *told, *more])
