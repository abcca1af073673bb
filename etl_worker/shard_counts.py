"""Counts of a partition in progress: shards, rows done, rows failed.

`etl_worker.cores` calls `ShardCounts` for each finished shard, failed row and report; `partition` reads the final
counts. `ShardCounts` reports progress, and ends the job if rows differ in layout or too many fail. It makes no shards
and writes no files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from cerebro.data.manifests import NAMED_ROWS, FailedRow, ShardManifest, named_rows
from cerebro.worker.preprocessing.job import EtlJob, EtlProgress, ProgressCallback, ShardRange
from etl_worker.errors import TooManyFailedError

REPORT_S = 0.25
"""Shortest time between two reports."""
SEARCH_S = 10.0
"""Longest time to collect more failed rows before the job fails for them.

The error then names several rows, so the user need not run the job once for each.
"""


class ShardCounts:
    """Shards and counts of one job, owned by the job's own process.

    Args:
        done: shards of an earlier attempt, in row order.
        clock: returns monotonic seconds.

    Attributes:
        shards: all complete shards.
    """

    def __init__(
        self,
        job: EtlJob,
        rows_total: int,
        done: Sequence[ShardManifest],
        progress: ProgressCallback,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._job, self._total, self._progress = job, rows_total, progress
        self._earlier_done = sum(shard.rows_in for shard in done)
        self._earlier_failed = sum(len(shard.failed) for shard in done)
        self._reported_at = float("-inf")
        self._failures: dict[int, FailedRow] = {}
        self._exceeded_at: float | None = None
        """Time at which too many rows had failed."""
        self.shards: list[ShardManifest] = list(done)
        for shard in done:
            for offset, row in enumerate(shard.failed[:NAMED_ROWS]):
                self.add_failure(shard.start + offset, row)

    def add(self, shard: ShardManifest) -> None:
        """Add a shard made by this attempt.

        Raises:
            RowError: its rows differ from those in another shard in fields, shapes or dtypes.
        """
        self.shards.append(shard)
        with_rows = [other for other in self.shards if other.layout is not None]
        if shard.layout is not None:
            # Comparing with one shard is enough, since all earlier ones agree. The error blames the later rows.
            pair = sorted((with_rows[0], shard), key=lambda one: one.index)
            assert pair[0].layout is not None
            assert pair[1].layout is not None
            pair[0].layout.check_layout(pair[1].layout)

    def add_failure(self, position: int, row: FailedRow) -> None:
        """Remember a failed row for the error message."""
        self._failures[position] = row

    def forget(self, part: ShardRange) -> None:
        """Forget the failures of these rows, which another core makes again."""
        for position in range(part.start, part.stop):
            self._failures.pop(position, None)
        self._exceeded_at = None

    def update(self, done: int, failed: int, *, final: bool = False) -> None:
        """Update the counts of this attempt and report progress.

        Args:
            done: rows processed, failed ones included.
            failed: rows that failed.
            final: True if no rows remain.

        Raises:
            TooManyFailedError: more than `max_failed_fraction` of the rows failed, and enough failed rows are known,
                `SEARCH_S` has passed or `final` is True.
        """
        # A core sends a failed row before it counts it.
        done, failed = self._earlier_done + done, max(self._earlier_failed + failed, len(self._failures))
        now = self._clock()
        if final or now - self._reported_at >= REPORT_S:
            self._reported_at = now
            self._progress(EtlProgress(rows_done=done, rows_failed=failed, rows_total=self._total))
        if failed > self._job.max_failed_fraction * self._total:
            self._exceeded_at = now if self._exceeded_at is None else self._exceeded_at
            if final or len(self._failures) >= NAMED_ROWS or now - self._exceeded_at >= SEARCH_S:
                raise self._too_many(failed)

    def _too_many(self, failed: int) -> TooManyFailedError:
        rows = [row for _, row in sorted(self._failures.items())]
        error = TooManyFailedError(
            f"preprocessing of split {self._job.split!r} ended: {failed} of the {self._total} rows of a partition "
            f"failed ({failed / self._total:.1%}; `max_failed` allows {self._job.max_failed_fraction:.1%})"
            f"{named_rows(rows)}",
            failed,
            rows,
        )
        error.user_traceback = rows[0].traceback if rows else ""
        return error
