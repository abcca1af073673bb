"""What `run_etl` returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cerebro import figures
from cerebro.client.files import Files
from cerebro.client.results.failed import failed_table
from cerebro.client.results.plots import plotted
from cerebro.contract.runs import EtlPlan
from cerebro.figures import SplitProgress, Theme
from cerebro.state import Dataset, Run

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@dataclass(frozen=True, kw_only=True)
class EtlResult:
    """What `run_etl` made.

    Attributes:
        dataset: id of the data set; the same call gives the same one.
        rows: per split, rows in; `rows == kept + failed`, always.
        kept, failed: per split, rows preprocessed and rows whose function raised.
        seconds: from its start to its end; waiting in the queue is left out.
    """

    dataset: str
    rows: dict[str, int]
    kept: dict[str, int]
    failed: dict[str, int]
    seconds: float
    plan: EtlPlan = field(repr=False)
    files: Files = field(repr=False)

    @classmethod
    def of(cls, dataset: Dataset, run: Run, files: Files) -> EtlResult:
        """The result of a finished ETL run."""
        splits = dataset.plan.splits
        kept = {s: sum(dataset.rows.get((s, p.partition), 0) for p in parts) for s, parts in splits.items()}
        failed = {
            s: sum(dataset.failed_rows.get((s, p.partition), 0) for p in parts) for s, parts in splits.items()
        }
        rows = {split: sum(p.rows for p in parts) for split, parts in splits.items()}
        return cls(
            dataset=dataset.id,
            rows=rows,
            kept=kept,
            failed=failed,
            seconds=run.ended - run.started,
            plan=dataset.plan,
            files=files,
        )

    def failed_rows(self) -> pd.DataFrame:
        """The rows whose function raised, as a table: split, id, error, traceback."""
        return failed_table(self.plan, self.files)

    def plot_rows(self, path: Path | str | None = None, *, theme: Theme = "light") -> go.Figure:
        """Rows preprocessed and failed, per split; with `path`, also as an HTML file."""
        splits = [
            SplitProgress(
                split=split,
                rows=rows,
                kept=self.kept[split],
                failed=self.failed[split],
                done=rows,
            )
            for split, rows in self.rows.items()
        ]
        return plotted(figures.etl(splits, theme=theme), path)
