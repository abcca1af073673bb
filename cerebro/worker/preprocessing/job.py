"""The interface of preprocessing a partition: its job, its spec and its progress.

`etl_worker.handler` and the client's dry run make an `EtlJob`; `etl_worker` and `shard.py` read it. Types only.
"""

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
        split: also the mode passed to the row function.
        metadata_path: Arrow IPC file with the partition's metadata rows, including ``id``.
        output_folder: the partition's folder; owned by this job while it runs.
        objects_uri: root of the objects that rows name; None without objects.
        cache_folder: folder for remote objects during preprocessing; removed afterwards.
        cores: number of processes, which also determines the shards; with 1 the calling process does the work.
        shortages: number of attempts that ran out of memory; reduces the initial processes.
        max_failed_fraction: maximum fraction of failed rows, 0 to 1.
        fingerprint: changes whenever the output may change; shards with another one are rebuilt.
        download_concurrency: number of concurrent downloads, over all cores.
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
    """Rows of the partition until now; ``rows_done`` includes failed rows and earlier attempts."""

    rows_done: int
    rows_failed: int
    rows_total: int


class Spec(Protocol):
    """The part of `cerebro.spec.ETLSpec` that preprocessing uses."""

    @property
    def is_feature_download(self) -> Sequence[str]:
        """Metadata columns that name objects."""

    @property
    def batch_rows(self) -> int:
        """Maximum rows of a batch."""

    def initialize_worker(self) -> None:
        """Called once per process."""

    def row_preprocessor(self, row: Mapping[str, Any], mode: Mode, object_dir: str) -> tuple[Any, Any]:
        """A row as (input, output)."""

    def batch_preprocessor(self, batch: pa.RecordBatch, mode: Mode, object_dir: str) -> tuple[Any, Any]:
        """Rows as (inputs, outputs)."""


SpecFactory: TypeAlias = Callable[[], Spec]
"""Makes the spec, initialised; called once in each process that preprocesses rows."""

ProgressCallback: TypeAlias = Callable[[EtlProgress], None]
"""Called from the job's process and thread a few times a second. An exception ends the job."""
