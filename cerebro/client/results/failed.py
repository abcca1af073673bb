"""Rows that preprocessing left out, or failed for, as workers wrote them on the shared volume."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from cerebro.client.files import Files
from cerebro.contract.runs import EtlPlan
from cerebro.errors import NotFoundError
from cerebro.runtime.volumes import failed_rows_file
from cerebro.state import Run, Task, TaskKey, TaskState, wording

COLUMNS = ("split", "id", "error", "traceback")


def failed_table(
    plan: EtlPlan, files: Files, *, experiment: str = "", run: Run | None = None
) -> pd.DataFrame:
    """The failed rows of an ETL run's data set, in the order of splits and partitions.

    A worker writes at most 1,000 rows of a partition; how many failed in all is in ``table.attrs["total"]``, and
    sentences about rows that are missing in ``table.attrs["notes"]``.

    Args:
        experiment, run: the run that is asked for. A later run of the same data set replaces what it wrote. Rows of a
            partition that it completed are the same in all runs; of other partitions the rows of later runs are left
            out.

    Raises:
        UnauthorizedError, StoreUnavailableError: a cluster elsewhere does not hand them out.
    """
    rows: list[dict[str, Any]] = []
    total, replaced = 0, []
    for split, parts in plan.splits.items():
        for part in parts:
            found = _read(files, failed_rows_file(plan.dataset, split, part.partition))
            if run is not None:
                task = run.tasks.get(
                    str(TaskKey(run=run.id, kind="etl", split=split, partition=part.partition))
                )
                if task is not None and _is_replaced(found, task, (experiment, run.id)):
                    replaced.append(f"{split} {part.partition}")
                    continue
            if found is None:
                continue  # none of its rows failed
            total += found["total"]
            rows += [{"split": split, **row} for row in found["rows"]]
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    table.attrs["total"] = total
    table.attrs["notes"] = list(_notes(run, replaced))
    return table


def _read(files: Files, name: str) -> dict[str, Any] | None:
    try:
        path = files.shared(name)
    except NotFoundError:
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _is_replaced(found: Mapping[str, Any] | None, task: Task, whose: tuple[str, str]) -> bool:
    """Whether the task's failed rows are no longer known, because a later run has preprocessed the partition."""
    if task.state is TaskState.COMMITTED:
        return False
    if found is None:
        return task.failure is not None and task.failure.rows_failed > 0
    return (found["experiment"], found["run"]) != whose


def _notes(run: Run | None, replaced: Sequence[str]) -> Iterator[str]:
    if replaced:
        yield (
            f"Failed rows of {', '.join(replaced)} are no longer known: a later run has preprocessed the same data set."
        )
    if run is not None and (left := wording.incomplete(run)):
        yield left
