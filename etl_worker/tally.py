"""A partition as it comes into being: shards made, rows done and failed. What cannot become a partition ends the job.

Progress is reported on the way. How shards are made, and by whom, is not known here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from cerebro.data.manifests import FailedRow, ShardManifest
from cerebro.errors import RowError
from cerebro.preprocessing.job import EtlJob, EtlProgress, ProgressCallback

REPORT_S = 0.25
"""Shortest pause between two reports."""


class Tally:
    """Shards and counts of one job. Owned by the job's own process, which learns from the cores.

    Args:
        done: shards of an earlier attempt, in row order.

    Attributes:
        shards: all that are complete.
    """

    def __init__(
        self, job: EtlJob, rows_total: int, done: Sequence[ShardManifest], progress: ProgressCallback
    ) -> None:
        self._job, self._total, self._progress = job, rows_total, progress
        self._done_before = sum(shard.rows_in for shard in done)
        self._failed_before = sum(len(shard.failed) for shard in done)
        self._reported_at = float("-inf")
        self._first_failure: tuple[int, FailedRow] | None = None
        self.shards: list[ShardManifest] = list(done)
        for shard in done:
            if shard.failed:
                self.saw_failure(shard.start, shard.failed[0])

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
        """Remember a failed row, to be named if the job ends for it; the first by position is named."""
        if self._first_failure is None or position < self._first_failure[0]:
            self._first_failure = (position, row)

    def update(self, done: int, failed: int, *, final: bool = False) -> None:
        """Take in how many rows this attempt has done (failed ones included) and how many of them failed.

        Raises:
            RowError: more than the allowed share of the partition's rows has failed.
        """
        done, failed = self._done_before + done, self._failed_before + failed
        now = time.monotonic()
        if final or now - self._reported_at >= REPORT_S:
            self._reported_at = now
            self._progress(EtlProgress(rows_done=done, rows_failed=failed, rows_total=self._total))
        if failed > self._job.max_failed_fraction * self._total:
            raise RowError(self._too_many(failed))

    def _too_many(self, failed: int) -> str:
        message = (
            f"preprocessing of split {self._job.split!r} ended: {failed} of the {self._total} rows of a "
            f"partition failed ({failed / self._total:.1%}; allowed are {self._job.max_failed_fraction:.1%})"
        )
        if self._first_failure is not None:
            row = self._first_failure[1]
            message += f". The first was row {row.id!r}: {row.error}\n{row.traceback}"
        return message
