"""A partition as it comes into being: shards made, rows done and failed. What cannot become a partition ends the job.

Progress is reported on the way. How shards are made, and by whom, is not known here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from cerebro.data.manifests import NAMED_ROWS, FailedRow, ShardManifest, named_rows
from cerebro.worker.preprocessing.job import EtlJob, EtlProgress, ProgressCallback, ShardRange
from etl_worker.errors import TooManyFailedError

REPORT_S = 0.25
"""Shortest pause between two reports."""
SEARCH_S = 10.0
"""Longest time a job goes on that is going to fail for its failed rows: so that more than the first is known, and the
user need not run it again for each."""


class ShardCounts:
    """Shards and counts of one job. Owned by the job's own process, which learns from the cores.

    Args:
        done: shards of an earlier attempt, in row order.
        clock: seconds, monotonic.

    Attributes:
        shards: all that are complete.
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
        self._done_before = sum(shard.rows_in for shard in done)
        self._failed_before = sum(len(shard.failed) for shard in done)
        self._reported_at = float("-inf")
        self._failures: dict[int, FailedRow] = {}
        self._doomed_at: float | None = None
        """Since when more have failed than may."""
        self.shards: list[ShardManifest] = list(done)
        for shard in done:
            for place, row in enumerate(shard.failed[:NAMED_ROWS]):
                self.saw_failure(shard.start + place, row)

    def add(self, shard: ShardManifest) -> None:
        """Take in a shard that this attempt has made.

        Raises:
            RowError: its rows differ from those of another shard in fields, shapes or dtypes.
        """
        self.shards.append(shard)
        with_rows = [other for other in self.shards if other.layout is not None]
        if shard.layout is not None:
            # One other is enough: all that are there agree. The earlier rows are what the later ones must
            # fit.
            pair = sorted((with_rows[0], shard), key=lambda one: one.index)
            assert pair[0].layout is not None
            assert pair[1].layout is not None
            pair[0].layout.check_layout(pair[1].layout)

    def saw_failure(self, position: int, row: FailedRow) -> None:
        """Remember a failed row, to be named if the job ends for it."""
        self._failures[position] = row

    def forget(self, part: ShardRange) -> None:
        """Rows of this part are made anew: how they failed says nothing."""
        for position in range(part.start, part.stop):
            self._failures.pop(position, None)
        self._doomed_at = None

    def update(self, done: int, failed: int, *, final: bool = False) -> None:
        """Take in how many rows this attempt has done (failed ones included) and how many of them failed.

        Raises:
            TooManyFailedError: more than the allowed share of the partition's rows has failed, and as many are known as
                are named, or looking for more took `SEARCH_S`, or this is `final`.
        """
        # A core tells of a row before it counts it.
        done, failed = self._done_before + done, max(self._failed_before + failed, len(self._failures))
        now = self._clock()
        if final or now - self._reported_at >= REPORT_S:
            self._reported_at = now
            self._progress(EtlProgress(rows_done=done, rows_failed=failed, rows_total=self._total))
        if failed > self._job.max_failed_fraction * self._total:
            self._doomed_at = now if self._doomed_at is None else self._doomed_at
            if final or len(self._failures) >= NAMED_ROWS or now - self._doomed_at >= SEARCH_S:
                raise self._too_many(failed)

    def _too_many(self, failed: int) -> TooManyFailedError:
        rows = [row for _, row in sorted(self._failures.items())]
        error = TooManyFailedError(
            f"preprocessing of split {self._job.split!r} ended: {failed} of the {self._total} rows of a partition "
            f"failed ({failed / self._total:.1%}; allowed are {self._job.max_failed_fraction:.1%}){named_rows(rows)}",
            failed,
            rows,
        )
        error.user_traceback = rows[0].traceback if rows else ""
        return error
