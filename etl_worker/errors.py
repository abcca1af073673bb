"""Errors of preprocessing that end an `etl` task.

`shard_counts` and `cores` raise them. The child's task loop turns them into a typed `Failure`; the controller then
decides about another attempt.
"""

from __future__ import annotations

from collections.abc import Sequence

from cerebro.data.manifests import FailedRow
from cerebro.errors import RowError, WorkerCrashedError


class TooManyFailedError(RowError):
    """More rows failed than `max_failed` allows.

    Attributes:
        rows_failed: number of failed rows, as in `RowError`.
        rows: the known failed rows, in row order.
    """

    def __init__(self, message: str, count: int, rows: Sequence[FailedRow]) -> None:
        super().__init__(message)
        self.rows_failed, self.rows = count, tuple(rows)


class CoreDiedError(WorkerCrashedError):
    """A preprocessing process died; the message names its current row."""


class NoMemoryError(MemoryError):
    """A single preprocessing process ran out of memory; the message names its current row."""
