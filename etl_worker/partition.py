"""One partition, from metadata to a complete folder of shards: planned, resumed, counted, completed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence

from cerebro.data.manifests import FailedRow, PartitionManifest, ShardManifest, Source
from cerebro.data.partitions import complete_shards, read_manifest, write_manifest
from cerebro.errors import DataError, RowError, ShardCorruptError
from etl_worker.cores import make_shards
from etl_worker.job import EtlJob, ProgressCallback, SpecFactory
from etl_worker.metadata import Metadata
from etl_worker.plan import Plan, ShardRange, forget_failures, make_plan
from etl_worker.shard import Preprocessor, make_preprocessor
from etl_worker.tally import Tally


def preprocess_partition(
    job: EtlJob, spec_factory: SpecFactory, progress: ProgressCallback
) -> PartitionManifest:
    """Turn a partition's metadata into shards.

    Complete shards of the same source are verified and kept, whoever made them and however that ended; a
    partition that is complete costs reading it once. Calling again is safe; two calls at a time on one folder
    are not.

    With ``job.cores`` over 1 the calling process is forked: it must be single-threaded and must not have run
    user code (``spec_factory`` is called in each core). With 1 it does the work itself.

    Raises:
        RowError: more rows failed than allowed (failed rows are then tried again by the next call), or rows
            differ in fields, shapes or dtypes.
        CoreDiedError: a core process ended by itself.
        SpecError, MetadataError, LocatorError: what was given cannot be used.
        ObjectStoreError, StorageFullError: outside trouble; complete shards are kept.
    """
    metadata = Metadata(job.metadata_path)
    source = Source(fingerprint=job.fingerprint, metadata=metadata.checksum)
    plan = make_plan(job.output_folder, metadata.num_rows, job.cores, source)
    tally = _tally(job, metadata, plan, progress)

    def prepare(process: int) -> Preprocessor:
        return make_preprocessor(job, metadata, source, spec_factory, process=process)

    try:
        tally.update(0, 0)
        made = _make(job, plan.todo, prepare, tally)
        manifest = PartitionManifest.of(source, [*plan.done, *made])
        if manifest != _existing(job):
            write_manifest(job.output_folder, manifest)
        tally.update(
            sum(shard.rows_in for shard in made), sum(len(shard.failed) for shard in made), final=True
        )
        return manifest
    except RowError:
        if tally.has_too_many_failures:
            forget_failures(job.output_folder, complete_shards(job.output_folder, verify_bytes=False))
        raise
    finally:
        shutil.rmtree(job.cache_folder, ignore_errors=True)


def _make(
    job: EtlJob, parts: Sequence[ShardRange], prepare: Callable[[int], Preprocessor], tally: Tally
) -> list[ShardManifest]:
    if not parts:
        return []
    if job.cores > 1:
        return make_shards(parts, min(job.cores, len(parts)), prepare, tally)
    return _make_here(parts, prepare(0), tally)


def _make_here(parts: Sequence[ShardRange], preprocessor: Preprocessor, tally: Tally) -> list[ShardManifest]:
    done = failures = 0

    def on_row(position: int, failed: FailedRow | None) -> None:
        nonlocal done, failures
        done += 1
        if failed is not None:
            failures += 1
            tally.saw_failure(position, failed)
        tally.update(done, failures)

    return [preprocessor.shard(part, on_row) for part in parts]


def _tally(job: EtlJob, metadata: Metadata, plan: Plan, progress: ProgressCallback) -> Tally:
    done = sum(shard.rows_in for shard in plan.done)
    failed = sum(len(shard.failed) for shard in plan.done)
    tally = Tally(job, metadata.num_rows, (done, failed), progress)
    for shard in plan.done:
        if shard.failed:
            tally.saw_failure(shard.start, shard.failed[0])
    return tally


def _existing(job: EtlJob) -> PartitionManifest | None:
    try:
        return read_manifest(job.output_folder)
    except (DataError, ShardCorruptError):
        return None
