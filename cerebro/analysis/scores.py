"""One number per model to compare models by: its best objective, or that of an epoch which most have reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cerebro.analysis.summary import ModelSummary
from cerebro.contract.runs import FitRequest
from cerebro.state import Run


def scores(rows: Sequence[ModelSummary], values: Mapping[str, float] | None = None) -> dict[str, float]:
    """Model id -> its best objective, or what `values` has for it; models without one are left out."""
    found = {row.id: row.best if values is None else values.get(row.id) for row in rows}
    return {model: value for model, value in found.items() if value is not None}


def values_at(run: Run, epoch: int, *, margin: int = 0) -> dict[str, float]:
    """Model id -> the objective at `epoch`, so that models of unequal progress compare fairly.

    Args:
        run: a fit run.
        epoch: from 1.
        margin: where `epoch` has no value, that of the nearest epoch at most so many before it is taken.
    """
    assert isinstance(run.request, FitRequest)
    found = {}
    for model in run.models.values():
        for candidate in range(epoch, max(0, epoch - margin - 1), -1):
            value = model.metric(run.request.metric, candidate, validated=run.is_validated)
            if value is not None:
                found[model.id] = value
                break
    return found
