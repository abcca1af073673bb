"""The best model of a fit run, as every page names it."""

from __future__ import annotations

from dataclasses import dataclass

from cerebro.contract.runs import FitRequest
from cerebro.state import Run
from dispatcher.reading.model_table import ModelTable


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best objective value of a fit run, and the model and epoch that has it."""

    model: str
    metric: str
    mode: str
    value: float
    epoch: int


def best(run: Run, table: ModelTable) -> Best | None:
    """Of a planned fit run; `None` while no model has the objective."""
    row = table.best()
    if row is None or row.best is None or row.best_epoch is None:
        return None
    assert isinstance(run.request, FitRequest)
    return Best(
        model=row.id,
        metric=run.request.metric,
        mode=run.request.mode,
        value=row.best,
        epoch=row.best_epoch,
    )
