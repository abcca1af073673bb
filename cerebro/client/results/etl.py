"""`EtlResult`, the result of `Experiment.run_etl`: row counts, failed rows, columns and warnings.

It holds counts, not data: the partitions stay on the workers' volumes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cerebro import figures
from cerebro.client.files import Files
from cerebro.client.results.columns import columns_table, summary_of
from cerebro.client.results.failed_rows import failed_table
from cerebro.client.results.plots import to_plotly
from cerebro.contract.runs import EtlPlan
from cerebro.figures import SplitProgress, Theme
from cerebro.state import Dataset, Run

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@dataclass(frozen=True, kw_only=True)
class EtlResult:
    """Row counts, columns and warnings of a preprocessed data set.

    Attributes:
        dataset: id of the data set. The same arguments give the same id.
        rows: input rows of each split; equal to `kept_rows` + `failed`.
        kept_rows: preprocessed rows of each split.
        failed: failed rows of each split.
        seconds: duration of the run, without the time in the queue.
        plan: partitions of each split.
        files: access to the cluster's files.
        page: address of the experiment on the web page; empty if unknown.

    Example::

        etl = experiment.run_etl(MyETLSpec(), max_failed=0.01)
        print(etl.kept_rows["train"], etl.failed_rows(), etl.columns(), etl.warnings())
    """

    dataset: str
    rows: dict[str, int]
    kept_rows: dict[str, int]
    failed: dict[str, int]
    seconds: float
    plan: EtlPlan = field(repr=False)
    files: Files = field(repr=False)
    page: str = ""

    @classmethod
    def from_run(cls, dataset: Dataset, run: Run, files: Files, page: str = "") -> EtlResult:
        """Build the result of a finished ETL run."""
        splits = dataset.plan.splits
        kept_rows = {
            s: sum(dataset.rows.get((s, p.partition), 0) for p in parts) for s, parts in splits.items()
        }
        failed = {
            s: sum(dataset.failed_rows.get((s, p.partition), 0) for p in parts) for s, parts in splits.items()
        }
        rows = {split: sum(p.rows for p in parts) for split, parts in splits.items()}
        return cls(
            dataset=dataset.id,
            rows=rows,
            kept_rows=kept_rows,
            failed=failed,
            seconds=run.clock.ended - run.clock.started,
            plan=dataset.plan,
            files=files,
            page=page,
        )

    def failed_rows(self) -> pd.DataFrame:
        """Return the failed rows.

        Returns:
            One row per failed row: split, id, error, traceback; at most 1,000 per partition. ``attrs["total"]`` is the
            number of all failed rows.
        """
        return failed_table(self.plan, self.files)

    def columns(self) -> pd.DataFrame:
        """Return statistics of the metadata's columns and the prepared fields.

        A row has one value: the mean of an array's elements, or the length of a ragged array. Large partitions are
        sampled.

        Returns:
            One row per column and split: column, source ("metadata" or "rows"), kind, type, shape, split, rows,
            missing, infinite, low, high, mean, deviation (standard), distinct (NaN if there are too many values to
            count), and frequent, a dict of the most frequent values with their shares. At most 200 metadata columns and
            200 fields.

        Raises:
            DataError: the statistics are damaged.
            UnauthorizedError, StoreUnavailableError: a remote cluster does not deliver them.
        """
        return columns_table(summary_of(self.plan, self.files))

    def warnings(self) -> list[str]:
        """Return warnings about the data.

        They name rows whose input is in two splits or repeated, columns in which partitions differ more than chance
        explains, constant columns, and columns with missing values in one split only.

        Raises:
            DataError: the statistics are damaged.
            UnauthorizedError, StoreUnavailableError: a remote cluster does not deliver them.
        """
        return [warning.text for warning in summary_of(self.plan, self.files).warnings]

    def plot_rows(self, path: Path | str | None = None, *, theme: Theme = "light") -> go.Figure:
        """Plot preprocessed and failed rows of each split.

        Args:
            path: ``.html`` file to write as well. Default: none.
            theme: ``"light"`` (default) or ``"dark"``.

        Raises:
            ValueError: `path` does not end in ``.html``.
        """
        splits = [
            SplitProgress(
                split=split,
                rows=rows,
                kept_rows=self.kept_rows[split],
                failed=self.failed[split],
                done=rows,
            )
            for split, rows in self.rows.items()
        ]
        return to_plotly(figures.etl(splits, theme=theme), path)
