"""How far an ETL run is, split by split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cerebro.contract.base import Split
from cerebro.state import Dataset, Run, TaskKey, TaskState


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitProgress:
    """Rows of one split. Once all is done, ``rows == kept + failed``.

    Attributes:
        rows: rows in, all told.
        kept, failed: of partitions that are complete.
        done: `kept`, `failed`, and rows of partitions that are being made.
    """

    split: Split
    rows: int
    kept: int
    failed: int
    done: int


def etl_progress(
    dataset: Dataset, run: Run, live: Mapping[str, int] | None = None
) -> tuple[SplitProgress, ...]:
    """The splits of a data set, as far as an ETL run has made them.

    Args:
        live: task key -> rows that its attempt has gone through by now.
    """
    found = []
    for split, parts in dataset.plan.splits.items():
        kept = failed = under_way = 0
        for part in parts:
            key = str(TaskKey(run=run.id, kind="etl", split=split, partition=part.partition))
            task = run.tasks.get(key)
            # A partition without a task was there before this run.
            if task is None or task.state is TaskState.COMMITTED:
                kept += dataset.rows.get((split, part.partition), 0)
                failed += dataset.failed_rows.get((split, part.partition), 0)
            else:
                under_way += min((live or {}).get(key, 0), part.rows)
        rows = sum(part.rows for part in parts)
        done = kept + failed + under_way
        found.append(SplitProgress(split=split, rows=rows, kept=kept, failed=failed, done=done))
    return tuple(found)
