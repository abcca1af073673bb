"""The first rows of each split through the user's row function: partitions of a few rows, as a worker makes them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from cerebro.client.dry_run.outcome import TriedRows
from cerebro.contract.base import Split
from cerebro.contract.records import Locator, Locators
from cerebro.data.locators import read_metadata
from cerebro.data.manifests import FailedRow, PartitionManifest, Source, named_rows
from cerebro.data.partitions import write_manifest
from cerebro.data.tables import write_table
from cerebro.errors import RowError
from cerebro.worker.preprocessing.job import EtlJob, ShardRange, Spec
from cerebro.worker.preprocessing.metadata import Metadata
from cerebro.worker.preprocessing.shard import Preprocessor, initialize, open_preprocessor

_NAME = "dry run"


def try_rows(spec: Spec, locators: Locators, most: int, folder: Path) -> Iterator[TriedRows]:
    """Preprocess the first rows of each split.

    Args:
        spec: restored, not initialised.
        most: rows of each split.
        folder: for metadata, downloads and partitions.

    Raises:
        LocatorError, MetadataError, ObjectStoreError: the data cannot be read from here.
        SpecError: the spec names columns that are not there, or cannot be initialised.
        RowError: a row failed, or rows differ; with the traceback.
    """
    ready = [
        (*_prepared(spec, split, locator, most, folder), split)
        for split, locator in locators.splits().items()
    ]
    initialize(spec)
    for preprocessor, total, split in ready:
        rows, began = preprocessor.metadata.num_rows, time.monotonic()
        failed: list[FailedRow] = []

        def on_rows(
            position: int, count: int, row: FailedRow | None, failed: list[FailedRow] = failed
        ) -> None:
            if row is not None:
                failed.append(row)

        shard = preprocessor.shard(ShardRange(index=0, start=0, stop=rows), on_rows)
        if failed:
            raise RowError(
                f"{len(failed)} of the first {rows} rows of split {split!r} failed{named_rows(failed)}\n"
                f"The first, row {failed[0].id!r}:\n{failed[0].traceback.rstrip()}"
            )
        partition = PartitionManifest.of(preprocessor.source, [shard])
        write_manifest(preprocessor.job.output_folder, partition)
        yield TriedRows(
            split=split,
            rows=rows,
            of=total,
            seconds=time.monotonic() - began,
            fields=() if partition.layout is None else partition.layout.fields,
            folder=preprocessor.job.output_folder,
        )


def _prepared(
    spec: Spec, split: Split, locator: Locator, most: int, folder: Path
) -> tuple[Preprocessor, int]:
    table = read_metadata(split, locator).table
    path = folder / "metadata" / f"{split}.arrow"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(path, table.slice(0, most))
    metadata = Metadata(path)
    job = EtlJob(
        split=split,  # type: ignore[arg-type]  # the contract's pattern admits only the four modes
        metadata_path=path,
        output_folder=folder / "partitions" / split,
        objects_uri=locator.objects,
        cache_folder=folder / "downloads" / split,
        cores=1,
        max_failed_fraction=0.0,
        fingerprint=_NAME,
    )
    source = Source(fingerprint=_NAME, metadata=metadata.checksum)
    return open_preprocessor(job, metadata, source, spec, process=0), table.num_rows
