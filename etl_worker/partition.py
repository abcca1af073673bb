"""One partition, from metadata to a complete folder of shards: planned, resumed, counted, completed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence

from cerebro.data.manifests import FailedRow, PartitionManifest, Source
from cerebro.data.partitions import read_manifest, write_manifest
from cerebro.errors import DataError, RowError, ShardCorruptError
from cerebro.preprocessing.job import EtlJob, ProgressCallback, ShardRange, SpecFactory
from cerebro.preprocessing.metadata import Metadata
from cerebro.preprocessing.shard import Preprocessor, make_preprocessor
from etl_worker.cores import make_shards
from etl_worker.plan import forget_doubtful, make_plan
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
        RowError: more rows failed than allowed (`TooManyFailedError`), or rows differ in fields, shapes or dtypes.
            Failed and unusual rows are then tried again by the next call: what is mended may be the data and not the
            spec.
        CoreDiedError: a core process ended by itself.
        SpecError, MetadataError, LocatorError: what was given cannot be used.
        ObjectStoreError, StorageFullError: outside trouble; complete shards are kept.
    """
    metadata = Metadata(job.metadata_path)
    source = Source(fingerprint=job.fingerprint, metadata=metadata.checksum)
    plan = make_plan(job.output_folder, metadata.num_rows, job.cores, source)
    tally = Tally(job, metadata.num_rows, plan.done, progress)

    def prepare(process: int) -> Preprocessor:
        return make_preprocessor(job, metadata, source, spec_factory, process=process)

    try:
        tally.update(0, 0)
        _make(job, plan.todo, prepare, tally)
        manifest = PartitionManifest.of(source, tally.shards)
        before = sum(shard.rows_in for shard in plan.done), sum(len(shard.failed) for shard in plan.done)
        tally.update(manifest.rows_in - before[0], manifest.rows_failed - before[1], final=True)
        if manifest != _existing(job):
            write_manifest(job.output_folder, manifest)
        return manifest
    except RowError:
        forget_doubtful(job.output_folder, source)
        raise
    finally:
        shutil.rmtree(job.cache_folder, ignore_errors=True)


def _make(
    job: EtlJob, parts: Sequence[ShardRange], prepare: Callable[[int], Preprocessor], tally: Tally
) -> None:
    if not parts:
        return
    if job.cores > 1:
        make_shards(parts, min(job.cores, len(parts)), prepare, tally)
    else:
        _make_here(parts, prepare(0), tally)


def _make_here(parts: Sequence[ShardRange], preprocessor: Preprocessor, tally: Tally) -> None:
    done = failures = 0

    def on_row(position: int, failed: FailedRow | None) -> None:
        nonlocal done, failures
        done += 1
        if failed is not None:
            failures += 1
            tally.saw_failure(position, failed)
        tally.update(done, failures)

    for part in parts:
        tally.add(preprocessor.shard(part, on_row))


def _existing(job: EtlJob) -> PartitionManifest | None:
    try:
        return read_manifest(job.output_folder)
    except (DataError, ShardCorruptError):
        return None
