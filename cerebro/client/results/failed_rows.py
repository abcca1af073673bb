"""Table of the failed rows of preprocessing, from the reports that workers wrote to the shared volume.

`EtlResult`, `Experiment.failed_rows` and `cerebro failed-rows` call it. A report has at most 1,000 rows of a partition.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from cerebro.client.files import Files
from cerebro.contract.runs import EtlPlan
from cerebro.errors import NotFoundError
from cerebro.runtime.volumes import failed_rows_file
from cerebro.state import Run, Task, TaskKey, TaskState
from cerebro.state.reports import state_words

COLUMNS = ("split", "id", "error", "traceback")


def failed_table(
    plan: EtlPlan, files: Files, *, experiment: str = "", run: Run | None = None
) -> pd.DataFrame:
    """Return the failed rows of an ETL run, in the order of splits and partitions.

    A worker writes at most 1,000 rows per partition. ``table.attrs["total"]`` is the number of all failed rows,
    ``table.attrs["notes"]`` has sentences that explain which failed rows are missing.

    Args:
        plan: plan of the data set.
        files: access to the cluster's files.
        experiment: experiment of `run`.
        run: only rows of this run. A later run overwrites files of partitions that `run` did not complete; those rows
            are omitted and named in the notes.

    Raises:
        UnauthorizedError, StoreUnavailableError: a remote cluster does not deliver the files.
    """
    rows: list[dict[str, Any]] = []
    total, replaced = 0, []
    for split, parts in plan.splits.items():
        for part in parts:
            report = _read(files, failed_rows_file(plan.dataset, split, part.partition))
            if run is not None:
                task = run.tasks.by_key.get(
                    str(TaskKey(run=run.id, kind="etl", split=split, partition=part.partition))
                )
                if task is not None and _is_replaced(report, task, (experiment, run.id)):
                    replaced.append(f"{split} {part.partition}")
                    continue
            if report is None:
                continue  # no row failed, or the partition is not preprocessed yet
            total += report["total"]
            rows += [{"split": split, **row} for row in report["rows"]]
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    table.attrs["total"] = total
    table.attrs["notes"] = list(_notes(run, replaced))
    return table


def _read(files: Files, name: str) -> dict[str, Any] | None:
    try:
        path = files.shared(name)
    except NotFoundError:
        return None
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return report


def _is_replaced(report: Mapping[str, Any] | None, task: Task, owner: tuple[str, str]) -> bool:
    """True if a later run has overwritten the task's failed rows."""
    if task.state is TaskState.COMMITTED:
        return False
    if report is None:
        return task.failure is not None and task.failure.rows_failed > 0
    return (report["experiment"], report["run"]) != owner


def _notes(run: Run | None, replaced: Sequence[str]) -> Iterator[str]:
    if replaced:
        yield (
            f"Failed rows of {', '.join(replaced)} were replaced: a later run preprocessed the same data set."
        )
    if run is not None and (note := state_words.incomplete(run)):
        yield note
