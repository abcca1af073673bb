"""Reader of the statistics that workers wrote, for the client and the page's child process."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

from cerebro.contract.base import Contract
from cerebro.contract.runs import EtlPlan
from cerebro.data.statistics.data import MAX_BYTES, DataStatistics
from cerebro.errors import DataError
from cerebro.figures.data.comparison import summarize
from cerebro.figures.data.summary import DataSummary
from cerebro.runtime.volumes import statistics_file


class SummaryRequest(Contract):
    """Files of statistics of each split, on the shared volume."""

    files: dict[str, tuple[str, ...]]

    @classmethod
    def of(cls, plan: EtlPlan) -> SummaryRequest:
        """Return the request for a data set."""
        return cls(
            files={
                split: tuple(statistics_file(plan.dataset, split, part.partition) for part in parts)
                for split, parts in plan.splits.items()
            }
        )


def read_summary(request: SummaryRequest, open_file: Callable[[str], BinaryIO | None]) -> DataSummary:
    """Read and compare the statistics of a data set.

    Args:
        open_file: opens a file of the request; returns None for a missing file.

    Raises:
        DataError: a file is damaged.
    """
    splits: dict[str, list[DataStatistics]] = {}
    incomplete = 0
    for split, names in request.files.items():
        for name in names:
            file = open_file(name)
            if file is None:
                incomplete += 1
                continue
            with file:
                content = file.read(MAX_BYTES + 1)
            if len(content) > MAX_BYTES:
                raise DataError(f"{name} is larger than {MAX_BYTES >> 20} MiB: run the ETL again")
            splits.setdefault(split, []).append(DataStatistics.from_json(content))
    return summarize(splits, incomplete)
