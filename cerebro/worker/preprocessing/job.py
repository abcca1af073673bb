"""What preprocessing a partition is asked to do, what it needs of a spec, and what it reports on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from cerebro.spec import Mode

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class EtlJob:
    """One partition of one split.

    Attributes:
        split: also the mode that the row function is called with.
        metadata_path: Arrow IPC file with the partition's metadata rows, ``id`` among its columns.
        output_folder: the partition's folder; owned by this job while it runs.
        objects_uri: root of the objects that rows name; None where rows name none.
        cache_folder: where objects of a remote store are kept while their rows are preprocessed; emptied.
        cores: processes to use, and what the cut into shards follows; with 1 the calling process does the work.
        shortages: how many attempts at this ran out of memory: fewer processes begin.
        max_failed_fraction: share of the partition's rows, 0 to 1, that may fail before the job does.
        fingerprint: changes whenever the rows that come out may; shards of another one are made again.
        download_concurrency: objects fetched at a time, over all cores.
    """

    split: Mode
    metadata_path: Path
    output_folder: Path
    objects_uri: str | None
    cache_folder: Path
    cores: int
    max_failed_fraction: float
    fingerprint: str
    shortages: int = 0
    download_concurrency: int = 16


@dataclass(frozen=True, kw_only=True)
class ShardRange:
    """Rows ``start`` to ``stop`` (exclusive) of the partition, to become one shard."""

    index: int
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class EtlProgress:
    """Rows of the partition so far; ``rows_done`` counts failed rows and those of an earlier attempt too."""

    rows_done: int
    rows_failed: int
    rows_total: int


class Spec(Protocol):
    """What is used of an `cerebro.spec.ETLSpec`."""

    @property
    def is_feature_download(self) -> Sequence[str]:
        """Metadata columns that name objects."""

    @property
    def batch_rows(self) -> int:
        """Most rows of a batch."""

    def initialize_worker(self) -> None:
        """Called once per process."""

    def row_preprocessor(self, row: Mapping[str, Any], mode: Mode, object_dir: str) -> tuple[Any, Any]:
        """A row as (input, output)."""

    def batch_preprocessor(self, batch: pa.RecordBatch, mode: Mode, object_dir: str) -> tuple[Any, Any]:
        """Rows as (inputs, outputs)."""


SpecFactory: TypeAlias = Callable[[], Spec]
"""Makes the spec, initialised; called once in each process that preprocesses rows."""

ProgressCallback: TypeAlias = Callable[[EtlProgress], None]
"""Called from the job's own process and thread a few times a second; what it raises ends the job."""
