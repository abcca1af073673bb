"""Rows done and failed over a whole partition: reported on the way; too many failed ones end the job."""

from __future__ import annotations

import time

from cerebro.data.manifests import FailedRow
from cerebro.errors import RowError
from etl_worker.job import EtlJob, EtlProgress, ProgressCallback

REPORT_S = 0.25
"""Shortest pause between two reports."""


class Tally:
    """Counts of one job. Owned by the job's own process; cores are counted by it.

    Args:
        before: rows done and failed by an earlier attempt.
    """

    def __init__(
        self, job: EtlJob, rows_total: int, before: tuple[int, int], progress: ProgressCallback
    ) -> None:
        self._job = job
        self._total = rows_total
        self._before = before
        self._progress = progress
        self._reported_at = float("-inf")
        self._failures: dict[int, FailedRow] = {}
        self._counts = before

    def saw_failure(self, position: int, row: FailedRow) -> None:
        """Remember a failed row, to be named if the job ends for it; the first by position is named."""
        if not self._failures or position < min(self._failures):
            self._failures = {position: row}

    def update(self, done: int, failed: int, *, final: bool = False) -> None:
        """Take in how many rows this attempt has done (failed ones included) and how many of them failed.

        Raises:
            RowError: more than the allowed share of the partition's rows has failed.
        """
        self._counts = (self._before[0] + done, self._before[1] + failed)
        now = time.monotonic()
        if final or now - self._reported_at >= REPORT_S:
            self._reported_at = now
            self._progress(
                EtlProgress(rows_done=self._counts[0], rows_failed=self._counts[1], rows_total=self._total)
            )
        self._check()

    @property
    def has_too_many_failures(self) -> bool:
        """Whether more rows have failed than are allowed."""
        return self._counts[1] > self._job.max_failed_fraction * self._total

    def _check(self) -> None:
        if not self.has_too_many_failures:
            return
        failed = self._counts[1]
        message = (
            f"preprocessing of split {self._job.split!r} ended: {failed} of the {self._total} rows of a "
            f"partition failed ({failed / self._total:.1%}; allowed are {self._job.max_failed_fraction:.1%})"
        )
        for row in self._failures.values():
            message += f". The first was row {row.id!r}: {row.error}\n{row.traceback}"
        raise RowError(message)
