"""Preparing an ETL run: stream the metadata, cut it, leave each worker's rows on the shared volume.

Effects are files under a data set's own folder, written aside and renamed: doing it again changes nothing. Memory is
bounded, whatever the tables' size: rows are sorted in files (`controller.preparation.bucket_sort`). The controller has
it done by `controller.preparation.process`, and so never holds Arrow or a table itself.
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
from cerebro.data.durable import sync_folder
from cerebro.data.misc import versions
from cerebro.data.table_files import TableFiles, table_files
from cerebro.errors import ConflictError, LocatorError, MetadataError
from cerebro.runtime.volumes import Volumes
from controller.preparation.partition import kept, shares
from controller.storage.scratch import began, scratch_folder

if TYPE_CHECKING:
    from cerebro.data.table_stream import TableStream


def prepare_etl(
    record: ExperimentRecord,
    known: Mapping[str, EtlPlan],
    request: EtlRequest,
    weights: Mapping[str, float],
    volumes: Volumes,
) -> EtlPlan:
    """The plan of an ETL run, its partitioned metadata written to the shared volume.

    The data set's id is a fingerprint of everything that determines its rows; when the experiment has that data set
    already, its partitions stay where they are and nothing is written.

    Args:
        known: the experiment's data sets.
        weights: worker -> weight; the workers that share the rows.

    Raises:
        LocatorError, MetadataError: the metadata cannot be used.
        ObjectStoreError: an object store did not answer.
        StorageFullError: the shared volume has no room for the rows and, while they are sorted, for a second copy.
        ConflictError: another preparation of the same data set began meanwhile.
    """
    with scratch_folder(volumes.scratch) as scratch:
        tables = {
            split: _found(split, locator, scratch) for split, locator in record.locators.splits().items()
        }
        dataset = _fingerprint(record, request, tables)
        if dataset in known:
            return known[dataset]
        with _only_cut(scratch, dataset, volumes.metadata(dataset, "train", 0).parent) as folder:
            from cerebro.data.table_stream import open_splits

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
    return EtlPlan(dataset=dataset, splits=splits)


@dataclass(frozen=True, kw_only=True)
class _Table:
    """A split's metadata, on this machine; `versions` tells whether the files are still those of the digest."""

    split: Split
    locator: Locator
    files: TableFiles
    versions: list[str]
    digest: str


def _found(split: Split, locator: Locator, scratch: Path) -> _Table:
    files = table_files(locator.metadata).fetched(scratch / split)
    before = files.versions()
    return _Table(split=split, locator=locator, files=files, versions=before, digest=files.digest())


@contextmanager
def _only_cut(scratch: Path, dataset: str, placed: Path) -> Iterator[Path]:
    """A folder for a data set's files until they are put in place, so that two cuts never leave theirs side by side.

    A preparation that nobody waits for may still run, of a controller that has lost the leadership, say. The one that
    began later counts: it moves the other's folder away in one step, so what that puts in place afterwards is not
    there any more.

    Args:
        placed: the folder where they are put.

    Raises:
        ConflictError: another cut of the same data set began later.
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
    except FileNotFoundError as error:
        if folder.exists():
            raise
        raise _superseded(dataset) from error


def _superseded(dataset: str) -> ConflictError:
    return ConflictError(
        f"another preparation of the data set {dataset} began while this one ran, and its rows count: run it again"
    )


def _cut(
    table: _Table, stream: TableStream, request: EtlRequest, weights: Sequence[float], scratch: Path
) -> tuple[list[int], list[Path]]:
    """Numbers of rows for workers of these weights, and a file with each one's."""
    from controller.preparation.sorted_metadata import SortedMetadata

    folder = scratch / f"{table.split}-sorted"
    folder.mkdir()
    with SortedMetadata(table.split, table.locator, stream, request.seed, folder) as rows:
        if table.files.versions() != table.versions:
            raise LocatorError(f"{table.locator.metadata} was changed while it was read: run it again")
        most = kept(rows.total, request.fraction)
        if table.split == "train" and most < len(weights):
            raise MetadataError(
                f"'train' has {most} rows (of {rows.total}, fraction {request.fraction:g}) for {len(weights)} workers: "
                "each worker needs at least one; give more rows or start fewer workers"
            )
        counts = shares(most, weights)
        return counts, rows.write(counts)


def _put(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    path.replace(target)
    sync_folder(target.parent)


def _fingerprint(record: ExperimentRecord, request: EtlRequest, tables: Mapping[Split, _Table]) -> str:
    facts = {
        "code": request.code_fingerprint,
        "archive": record.archive,
        "locators": record.locators.model_dump(),
        "misc": versions(record.locators.misc),
        "metadata": {split: table.digest for split, table in tables.items()},
        "seed": request.seed,
        "fraction": request.fraction,
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    return f"{record.name}-{digest[:16]}"
