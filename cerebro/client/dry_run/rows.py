"""Preprocessing of the first rows of each split in the user's process, with the code of workers, for `dry_run`.

It writes metadata, downloads and partitions below the given folder only. A split with a failed row ends it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cerebro.client.dry_run.outcome import RowTrial, StepTrial
from cerebro.contract.base import Split
from cerebro.contract.records import Locator, Locators
from cerebro.data.manifests import FailedRow, PartitionManifest, Source, named_rows
from cerebro.data.mapped import MappedRows
from cerebro.data.partitions import write_manifest
from cerebro.data.tables.locators import Preview, open_metadata, preview_metadata
from cerebro.data.tables.whole_tables import write_table
from cerebro.errors import RowError, SpecError
from cerebro.usercode.checks import NO_TRAINING_ROWS, fits
from cerebro.usercode.fitted import pack_fitted, restore_fitted
from cerebro.worker.preprocessing.fit_pass import FitPass
from cerebro.worker.preprocessing.job import EtlJob, ShardRange, Spec
from cerebro.worker.preprocessing.metadata import Metadata
from cerebro.worker.preprocessing.shard import Preprocessor, initialize, open_preprocessor

_NAME = "dry run"


def try_rows(
    spec: Spec,
    locators: Locators,
    max_rows: int,
    folder: Path,
    on_fit: Callable[[StepTrial], None] = lambda step: None,
) -> Iterator[RowTrial]:
    """Preprocess the first rows of each split; first call `ETLSpec.fit`, if defined, on training rows.

    Args:
        spec: decoded spec, not initialised.
        locators: dataset locators.
        max_rows: maximum number of rows per split.
        folder: folder for metadata, downloads and partitions.
        on_fit: receives the result of `fit`; `spec.fitted` is set then.

    Raises:
        LocatorError, MetadataError, ObjectStoreError: the data cannot be read from here.
        SpecError: the spec names unknown columns, or its initialisation fails.
        RowError: a row failed, or rows differ; includes the traceback.
    """
    streams = open_metadata(locators)
    prepared = [
        (
            *_prepared(
                spec,
                split,
                locator,
                preview_metadata(split, locator, max_rows, stream=streams[split]),
                folder,
            ),
            split,
        )
        for split, locator in locators.splits().items()
    ]
    if fits(spec):
        on_fit(_fitted(spec, locators, folder))
    initialize(spec)
    for preprocessor, total, split in prepared:
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
        yield RowTrial(
            split=split,
            rows=rows,
            total=total,
            seconds=time.monotonic() - began,
            fields=() if partition.layout is None else partition.layout.fields,
            folder=preprocessor.job.output_folder,
        )


def non_finite_values(tried: Mapping[str, RowTrial]) -> list[str]:
    """Return a warning for each field of each split with NaN or infinite values."""
    warnings = []
    for split, trial in tried.items():
        mapped = MappedRows.open([trial.folder])
        (batch,) = mapped.planned(np.arange(trial.rows), np.array([0, trial.rows]))
        for field, column in zip(mapped.fields, batch.columns(), strict=True):
            rows = [np.asarray(column[number]) for number in range(trial.rows)]
            for name, test in (("NaN", np.isnan), ("infinity", np.isinf)):
                if found := sum(bool(test(row).any()) for row in rows if row.dtype.kind == "f"):
                    warnings.append(
                        f"{field.name} contains {name} in {found} of {trial.rows} rows of {split}"
                    )
    return warnings


def _fitted(spec: Any, locators: Locators, folder: Path) -> StepTrial:
    if locators.train is None:
        raise SpecError(NO_TRAINING_ROWS)
    began = time.monotonic()
    fitting = FitPass(
        spec,
        [folder / "metadata" / "train.arrow"],
        objects_uri=locators.train.objects,
        scratch=folder / "downloads" / "fitting",
        seed_key=_NAME,
    )
    content = pack_fitted(fitting.fit())
    spec.fitted = restore_fitted(content)  # as in the processes of workers
    outcome = f"{type(spec.fitted).__name__}, {len(content):,} bytes, of {fitting.rows:,} rows"
    return StepTrial(name="fit", seconds=time.monotonic() - began, outcome=outcome)


def _prepared(
    spec: Spec, split: Split, locator: Locator, preview: Preview, folder: Path
) -> tuple[Preprocessor, int | None]:
    path = folder / "metadata" / f"{split}.arrow"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(path, preview.table)
    metadata = Metadata(path)
    job = EtlJob(
        split=split,  # type: ignore[arg-type]  # the contract allows only the four modes
        metadata_path=path,
        output_folder=folder / "partitions" / split,
        objects_uri=locator.objects,
        cache_folder=folder / "downloads" / split,
        cores=1,
        max_failed_fraction=0.0,
        fingerprint=_NAME,
    )
    source = Source(fingerprint=_NAME, metadata=metadata.checksum)
    return open_preprocessor(job, metadata, source, spec, process=0), preview.rows
