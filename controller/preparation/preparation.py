"""Preparation of an ETL run: read the metadata, cut it, write each worker's rows to the shared volume.

Writes to a scratch folder, then moves the files into the data set's folder; repeating it changes nothing. Memory is
bounded for any table: rows are sorted in files (`controller.preparation.bucket_sort`). It runs in
`controller.preparation.process`, so the controller never holds Arrow or a table.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cerebro.contract.base import Split
from cerebro.contract.records import ExperimentRecord, Locator
from cerebro.contract.runs import EtlPlan, EtlRequest, PartitionPlan
from cerebro.data.files.durable import sync_folder
from cerebro.data.misc import versions
from cerebro.data.tables.table_files import TableFiles, table_files
from cerebro.errors import ConflictError, LocatorError, MetadataError, VolumeError
from cerebro.runtime.volume_errors import volume_errors_named
from cerebro.runtime.volumes import Volumes
from controller.preparation.partition import rows_in_use
from controller.storage.scratch import began, scratch_folder

if TYPE_CHECKING:
    from cerebro.data.tables.table_stream import TableStream


def prepare_etl(
    record: ExperimentRecord,
    known: Mapping[str, EtlPlan],
    request: EtlRequest,
    weights: Mapping[str, float],
    volumes: Volumes,
) -> EtlPlan:
    """Return the plan of an ETL run; write its partitioned metadata to the shared volume.

    The data set's id is a fingerprint of everything that determines its rows. If `known` has
    the id, return its plan and write nothing.

    Args:
        known: the experiment's data sets.
        weights: worker -> weight; the workers that share the rows.

    Raises:
        LocatorError, MetadataError: the metadata is unusable.
        ObjectStoreError: an object store did not answer.
        StorageFullError: the shared volume has no room for the rows and a second copy while sorting.
        VolumeError: the shared volume, or the one with the metadata, is unavailable.
        ConflictError: a later preparation of the data set has begun.
    """
    with scratch_folder(volumes.scratch) as scratch:
        tables = {
            split: _fetch(split, locator, scratch) for split, locator in record.locators.splits().items()
        }
        misc = versions(record.locators.misc)
        dataset = f"{record.name}-{_digest(_facts(record, request, tables, misc))}"
        if dataset in known:
            return known[dataset]
        with (
            volume_errors_named(volumes.shared),
            _exclusive_folder(scratch, dataset, volumes.metadata(dataset, "train", 0).parent) as folder,
        ):
            from cerebro.data.tables.splits import open_splits

            streams = open_splits(
                {split: (table.files, table.locator.types) for split, table in tables.items()}
            )
            splits: dict[Split, tuple[PartitionPlan, ...]] = {}
            cut: dict[Split, list[Path]] = {}
            for split, table in tables.items():
                rows, cut[split] = _cut(table, streams[split], request, list(weights.values()), folder)
                splits[split] = tuple(
                    PartitionPlan(partition=partition, worker=worker, rows=count)
                    for partition, (worker, count) in enumerate(zip(weights, rows, strict=True))
                )
            for split, paths in cut.items():
                for partition, path in enumerate(paths):
                    _put(path, volumes.metadata(dataset, split, partition))
    return EtlPlan(dataset=dataset, splits=splits, misc=_digest(misc) if misc else "")


@dataclass(frozen=True, kw_only=True)
class _Table:
    """A split's local metadata; `versions` shows if the files still match the digest."""

    split: Split
    locator: Locator
    files: TableFiles
    versions: list[str]
    digest: str


def _fetch(split: Split, locator: Locator, scratch: Path) -> _Table:
    files = table_files(locator.metadata).fetched(scratch / split)
    file_versions = files.versions()
    return _Table(split=split, locator=locator, files=files, versions=file_versions, digest=files.digest())


@contextmanager
def _exclusive_folder(scratch: Path, dataset: str, placed: Path) -> Iterator[Path]:
    """A temporary folder for a data set's files, so that two preparations never mix theirs.

    A former leader's preparation may still run. The newer one wins: it renames the older one's folder, whose
    moves then fail.

    Args:
        placed: the final folder.

    Raises:
        ConflictError: a later preparation of the data set has begun.
    """
    folder, started = scratch / dataset, began(scratch)
    folder.mkdir()
    for number, other in enumerate(scratch.parent.glob(f"*/{dataset}")):
        if other != folder:
            with suppress(FileNotFoundError):
                if began(other.parent) > started:
                    raise _superseded(dataset)
                other.replace(scratch / f"{number:04d}-ended")
    if any(path.stat().st_mtime_ns > started for path in placed.glob("*.arrow")):
        raise _superseded(dataset)
    try:
        yield folder
    except (FileNotFoundError, VolumeError) as error:
        if folder.exists():
            raise
        raise _superseded(dataset) from error


def _superseded(dataset: str) -> ConflictError:
    return ConflictError(
        f"another preparation of the data set {dataset} began while this one ran, and replaces this one: run it again"
    )


def _cut(
    table: _Table, stream: TableStream, request: EtlRequest, weights: Sequence[float], scratch: Path
) -> tuple[list[int], list[Path]]:
    """Return the number of rows and a file for each worker."""
    from controller.preparation.sorted_metadata import SortedMetadata

    folder = scratch / f"{table.split}-sorted"
    folder.mkdir()
    columns = {"stratify": request.stratify, "group": request.group} if table.split == "train" else {}
    with SortedMetadata(table.split, table.locator, stream, request.seed, folder, **columns) as rows:
        if table.files.versions() != table.versions:
            raise LocatorError(f"{table.locator.metadata} was changed while it was read: run it again")
        num_rows = rows_in_use(rows.total, request.fraction)
        if table.split == "train" and num_rows < len(weights):
            raise MetadataError(
                f"'train' has {num_rows} rows (of {rows.total}, fraction {request.fraction:g}) for {len(weights)} "
                "workers: each worker needs at least one; give more rows or start fewer workers"
            )
        counts = rows.counts(weights, request.fraction)
        return counts, rows.write(counts)


def _put(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    path.replace(target)
    sync_folder(target.parent)


def _facts(
    record: ExperimentRecord, request: EtlRequest, tables: Mapping[Split, _Table], misc: Mapping[str, str]
) -> dict[str, object]:
    """Return everything that determines the rows of a data set."""
    return {
        "code": request.code_fingerprint,
        "archive": record.archive,
        "locators": record.locators.model_dump(),
        "misc": misc,
        "metadata": {split: table.digest for split, table in tables.items()},
        "seed": request.seed,
        "fraction": request.fraction,
        **({"stratify": request.stratify} if request.stratify else {}),
        **({"group": request.group} if request.group else {}),
    }


def _digest(facts: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
