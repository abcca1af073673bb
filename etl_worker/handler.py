"""The handler of `etl` tasks: turns a task into a job on this worker's folders.

The child's task loop creates `Handler` and calls `handle` with one partition of one split. It reads the partition's
metadata and writes its shards. For the page and the client, it writes failed rows and statistics as JSON on the shared
volume. The agent commits the result; before that, the partition does not count.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path

from cerebro.contract.tasks.bodies import EtlTask, TaskBody
from cerebro.contract.tasks.results import ShardSet, TaskResult, Timings
from cerebro.data.files.durable import DurableFile, write_json
from cerebro.data.manifests import FailedRow
from cerebro.data.partitions import STATISTICS_FILE, failed_rows
from cerebro.errors import SpecError
from cerebro.state import TaskKey
from cerebro.worker.child.context import BaseHandler
from cerebro.worker.preprocessing.job import EtlJob, EtlProgress
from etl_worker.cores import Cores
from etl_worker.errors import TooManyFailedError
from etl_worker.partition import preprocess_partition

_MAX_ROWS, _MAX_TRACEBACK = 1_000, 2_000
"""Limits for the page: failed rows of a partition, and characters of each traceback, from its end."""


class Handler(BaseHandler):
    """Preprocesses one partition."""

    def handle(self, body: TaskBody, attempt: int) -> TaskResult:
        """Make the partition's shards; complete shards are verified and reused."""
        if not isinstance(body, EtlTask):
            raise SpecError(f"etl_worker does not execute tasks of kind {body.kind!r}")
        job = self._job(body)
        make_spec = partial(self._context.user_code.spec, body.code, body.misc, body.fitted)
        start_s, began = 0.0, time.monotonic()

        def on_ready() -> None:
            nonlocal start_s, began
            if self._context.start_up.is_cold:
                start_s, began = self._context.start_up.finish(), time.monotonic()

        def progress(counts: EtlProgress) -> None:
            self._context.listen()
            self._context.progress(
                rows=counts.rows_done, rows_failed=counts.rows_failed, total_rows=counts.rows_total
            )
            if counts.rows_done < counts.rows_total:
                self._context.raise_if_ending()

        try:
            with closing(Cores(make_spec)) as cores:
                manifest = preprocess_partition(job, cores, progress, on_ready)
        except TooManyFailedError as error:
            self._publish_failed_rows(body, error.rows_failed, error.rows)
            raise
        self._publish_failed_rows(body, manifest.rows_failed, failed_rows(job.output_folder))
        self._publish_statistics(body, job.output_folder / STATISTICS_FILE)
        return TaskResult(
            rows=manifest.rows_out,
            rows_failed=manifest.rows_failed,
            shards=ShardSet(number=len(manifest.shards), checksum=manifest.checksum),
            cores=self._context.cores,
            output=f"{body.dataset}/{body.split}/{body.partition}",
            timings=Timings(start_s=start_s, compute_s=time.monotonic() - began),
        )

    def _publish_failed_rows(self, body: EtlTask, total: int, rows: Iterable[FailedRow]) -> None:
        """Write the failed rows to the shared volume, because the partition may be on this worker only."""
        path = self._volumes.failed_rows(body.dataset, body.split, body.partition)
        if not total:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        run = TaskKey.parse(body.key).run
        written_rows = [
            asdict(row) | {"traceback": row.traceback[-_MAX_TRACEBACK:]} for row in islice(rows, _MAX_ROWS)
        ]
        write_json(path, {"experiment": body.experiment, "run": run, "total": total, "rows": written_rows})

    def _publish_statistics(self, body: EtlTask, made: Path) -> None:
        """Copy the statistics to the shared volume. All attempts make the same ones, so each partition counts once."""
        path = self._volumes.statistics(body.dataset, body.split, body.partition)
        path.parent.mkdir(parents=True, exist_ok=True)
        file = DurableFile(path)
        try:
            file.write(made.read_bytes())
            file.commit()
        finally:
            file.discard()

    def _job(self, body: EtlTask) -> EtlJob:
        locator = body.locators.splits()[body.split]
        metadata = self._volumes.metadata(body.dataset, body.split, body.partition)
        return EtlJob(
            split=body.split,  # type: ignore[arg-type]  # the contract's pattern admits only the four modes
            metadata_path=metadata,
            output_folder=self._volumes.partition(body.dataset, body.split, body.partition),
            objects_uri=locator.objects,
            cache_folder=self._volumes.downloads(body.dataset, body.split) / str(body.partition),
            cores=self._context.cores,
            max_failed_fraction=body.max_failed,
            shortages=body.shortages,
            # The data set's id covers code, locators, seed and fraction. The metadata adds this partition's rows.
            fingerprint=hashlib.sha256(
                (body.dataset + (body.fitted.checksum if body.fitted else "")).encode()
                + metadata.read_bytes()
            ).hexdigest(),
        )
