"""One partition, from metadata to a complete folder of shards: planned, resumed, counted, completed."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from cerebro.data.manifests import PartitionManifest, Source
from cerebro.data.partitions import read_manifest, write_manifest
from cerebro.errors import DataError, RowError, ShardCorruptError
from cerebro.worker.preprocessing.job import EtlJob, ProgressCallback
from cerebro.worker.preprocessing.metadata import Metadata
from etl_worker.cores import Cores
from etl_worker.shard_counts import ShardCounts
from etl_worker.shard_work import forget_doubtful, shard_work


def preprocess_partition(
    job: EtlJob,
    cores: Cores,
    progress: ProgressCallback,
    on_ready: Callable[[], None] = lambda: None,
) -> PartitionManifest:
    """Turn a partition's metadata into shards.

    Complete shards of the same source are verified and kept, whoever made them and however that ended; a
    partition that is complete costs reading it once. Calling again is safe; two calls at a time on one folder
    are not.

    Args:
        cores: do the work. None of their processes is left when this raises.
        on_ready: called once the spec is restored and initialised; not where all shards are there.

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
    plan = shard_work(job.output_folder, metadata.num_rows, job.cores, source)
    shard_counts = ShardCounts(job, metadata.num_rows, plan.done, progress)

    try:
        shard_counts.update(0, 0)
        if plan.todo:
            cores.make(job, metadata, source, plan.todo, shard_counts, on_ready=on_ready)
        manifest = PartitionManifest.of(source, shard_counts.shards)
        before = sum(shard.rows_in for shard in plan.done), sum(len(shard.failed) for shard in plan.done)
        shard_counts.update(manifest.rows_in - before[0], manifest.rows_failed - before[1], final=True)
        if manifest != _existing(job):
            write_manifest(job.output_folder, manifest)
        return manifest
    except BaseException as error:
        # What user code left behind when it failed is met by no other job.
        cores.close()
        if isinstance(error, RowError):
            forget_doubtful(job.output_folder, source)
        raise
    finally:
        shutil.rmtree(job.cache_folder, ignore_errors=True)


def _existing(job: EtlJob) -> PartitionManifest | None:
    try:
        return read_manifest(job.output_folder)
    except (DataError, ShardCorruptError):
        return None
