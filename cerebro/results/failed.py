"""Rows that preprocessing left out, or failed for, as workers wrote them on the shared volume."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from cerebro.contract.runs import EtlPlan
from cerebro.errors import NotFoundError
from cerebro.files import Files
from cerebro.volumes import failed_rows_file

COLUMNS = ("split", "id", "error", "traceback")


def failed_table(plan: EtlPlan, files: Files) -> pd.DataFrame:
    """The failed rows of an ETL run's data set, in the order of splits and partitions.

    A worker writes at most 1,000 rows of a partition; how many failed in all is in ``table.attrs["total"]``.

    Raises:
        UnauthorizedError, StoreUnavailableError: a cluster elsewhere does not hand them out.
    """
    rows: list[dict[str, Any]] = []
    total = 0
    for split, parts in plan.splits.items():
        for part in parts:
            try:
                path = files.shared(failed_rows_file(plan.dataset, split, part.partition))
            except NotFoundError:
                continue  # none of its rows failed
            found = json.loads(path.read_text(encoding="utf-8"))
            total += found["total"]
            rows += [{"split": split, **row} for row in found["rows"]]
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    table.attrs["total"] = total
    return table
