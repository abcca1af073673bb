"""Errors of preprocessing that say more than their text."""

from __future__ import annotations

from collections.abc import Sequence

from cerebro.data.manifests import FailedRow
from cerebro.errors import RowError, WorkerCrashedError


class TooManyFailedError(RowError):
    """More rows failed than may.

    Attributes:
        rows_failed: as `RowError` has it.
        rows: those of them that are known, in their order.
    """

    def __init__(self, message: str, count: int, rows: Sequence[FailedRow]) -> None:
        super().__init__(message)
        self.rows_failed, self.rows = count, tuple(rows)


class CoreDiedError(WorkerCrashedError):
    """A process that preprocessed rows ended by itself; the message names the row it was at."""


class NoMemoryError(MemoryError):
    """One process alone, which preprocessed rows, was ended for lack of memory; the message names the row it was at."""
