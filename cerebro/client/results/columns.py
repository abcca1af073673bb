"""Columns and warnings of a data set, from the statistics that workers wrote to the shared volume.

`EtlResult`, `Experiment.run_etl` and `cerebro status` call it.
"""

from __future__ import annotations

from typing import BinaryIO

import pandas as pd

from cerebro.client.files import Files
from cerebro.contract.runs import EtlPlan
from cerebro.errors import NotFoundError
from cerebro.figures.data.reading import SummaryRequest, read_summary
from cerebro.figures.data.summary import Column, DataSummary, SplitColumn

MAX_PARTITIONS = 64
"""Maximum number of partitions whose statistics are read without being asked for."""


def summary_of(plan: EtlPlan, files: Files) -> DataSummary:
    """Read and compare the statistics of a data set.

    Raises:
        DataError: a file is damaged.
        UnauthorizedError, StoreUnavailableError: a remote cluster does not deliver the files.
    """

    def open_file(name: str) -> BinaryIO | None:
        try:
            return files.shared(name).open("rb")
        except NotFoundError:
            return None

    return read_summary(SummaryRequest.of(plan), open_file)


def warning_line(plan: EtlPlan, files: Files) -> str:
    """Return one line about warnings; an empty text without any, or if they cannot be read."""
    if sum(map(len, plan.splits.values())) > MAX_PARTITIONS:
        return ""
    try:
        return summary_of(plan, files).sentence()
    except Exception:  # noqa: BLE001 - the line is an extra: its absence must not fail a run
        return ""


def columns_table(summary: DataSummary) -> pd.DataFrame:
    """Return one row for each column and split."""
    return pd.DataFrame(
        [_row(column, split) for column in summary.columns for split in column.splits], columns=list(_NAMES)
    )


_NAMES = (
    *("column", "source", "kind", "type", "shape", "split", "rows", "missing", "infinite"),
    *("low", "high", "mean", "deviation", "distinct", "frequent"),
)


def _row(column: Column, split: SplitColumn) -> dict[str, object]:
    return {
        "column": column.name,
        **column.model_dump(exclude={"name", "splits"}),
        **split.model_dump(exclude={"bins", "partitions", "omitted", "frequent"}),
        "frequent": {value.label: value.share for value in split.frequent},
    }
