"""One partition, from its metadata to a complete folder of shards.

`etl_worker.handler` calls `preprocess_partition` once per attempt. It continues where an earlier attempt stopped. Other
modules do the work: `shard_work` plans, `cores` runs processes, `shard_counts` limits failed rows.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable

from cerebro.data.manifests import PartitionManifest, ShardManifest, Source
from cerebro.data.partitions import STATISTICS_FILE, read_manifest, write_manifest
from cerebro.data.statistics.data import DataStatistics, merge_all, write_statistics
from cerebro.errors import DataError, RowError, ShardCorruptError
from cerebro.worker.preprocessing.job import EtlJob, ProgressCallback
from cerebro.worker.preprocessing.metadata import Metadata
from etl_worker.cores import Cores
from etl_worker.shard_counts import ShardCounts
from etl_worker.shard_work import discard_doubtful_shards, shard_work

log = logging.getLogger(__name__)


def preprocess_partition(
    job: EtlJob,
    cores: Cores,
    progress: ProgressCallback,
    on_ready: Callable[[], None] = lambda: None,
) -> PartitionManifest:
    """Turn a partition's metadata into shards.

    Complete shards of the same source are verified and reused; a complete partition costs one read. Calling again is
    safe, but two calls must not work on one folder at the same time.

    Args:
        cores: processes that make the shards. They have ended when this raises.
        progress: receives the row counts.
        on_ready: called once the spec is initialised; not called if all shards are complete.

    Raises:
        RowError: too many rows failed (`TooManyFailedError`), or rows differ in fields, shapes or dtypes. The next call
            tries failed and unusual rows again, because the user may have repaired the data instead of the spec.
        CoreDiedError: a preprocessing process died.
        SpecError, MetadataError, LocatorError: the spec, the metadata or a locator is invalid.
        ObjectStoreError, StorageFullError: storage failed; complete shards remain.
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
        earlier_rows = sum(shard.rows_in for shard in plan.done)
        earlier_failures = sum(len(shard.failed) for shard in plan.done)
        shard_counts.update(
            manifest.rows_in - earlier_rows, manifest.rows_failed - earlier_failures, final=True
        )
        path = job.output_folder / STATISTICS_FILE
        is_new = manifest != _existing(job)
        if is_new or not path.exists():
            shards = sorted(shard_counts.shards, key=lambda shard: shard.index)
            write_statistics(path, _statistics(metadata, shards))
        if is_new:
            write_manifest(job.output_folder, manifest)
        return manifest
    except BaseException as error:
        # No other job may meet the state that failed user code left in these processes.
        cores.close()
        if isinstance(error, RowError):
            discard_doubtful_shards(job.output_folder, source)
        raise
    finally:
        shutil.rmtree(job.cache_folder, ignore_errors=True)


def _statistics(metadata: Metadata, shards: Iterable[ShardManifest]) -> DataStatistics:
    """Return the statistics of a partition; without columns after an error, which must not fail the ETL."""
    try:
        observed = merge_all(shard.statistics for shard in shards if shard.statistics)
        return merge_all([metadata.statistics(), observed])
    except Exception:
        log.exception(
            "a partition has no statistics, because counting its rows failed; its rows are complete"
        )
        return DataStatistics()


def _existing(job: EtlJob) -> PartitionManifest | None:
    try:
        return read_manifest(job.output_folder)
    except (DataError, ShardCorruptError):
        return None
