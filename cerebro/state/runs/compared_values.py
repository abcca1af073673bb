"""Values that a fit compares: metrics and measures of a model at an epoch. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cerebro.contract.runs import MEASURES
from cerebro.search.pareto import Criteria, Point
from cerebro.state.models.model import Model

if TYPE_CHECKING:
    from cerebro.state.runs.run import Run


def compared_values(
    run: Run, model: Model, epoch: int, names: Sequence[str] | None = None
) -> dict[str, float]:
    """Return metrics and measures of a completed epoch; unknown ones are missing.

    Args:
        names: names of the values. Default: the run's objectives and the values in its constraints.
    """
    metrics = model.metrics(epoch, validated=run.is_validated)
    values = {}
    for name in run.fit_request.compared_names if names is None else names:
        value = _measure(model, name, epoch) if name in MEASURES else metrics.get(name)
        if value is not None:
            values[name] = value
    return values


def reported_values(run: Run, model: Model, epoch: int) -> dict[str, float]:
    """Return all metrics of an epoch, and the measures that the fit compares."""
    metrics = model.metrics(epoch, validated=run.is_validated)
    return (
        {**metrics, **compared_values(run, model, epoch)} if run.fit_request.is_multi_objective else metrics
    )


def point_of(run: Run, model: Model, epoch: int) -> Point:
    """Return the point of a model at an epoch; empty for a fit with one objective and no constraint."""
    criteria = Criteria.of(run.fit_request)
    return criteria.point(compared_values(run, model, epoch)) if criteria else Point(())


def _measure(model: Model, name: str, epoch: int) -> float | None:
    """Return a measure of `MEASURES` at the end of a completed epoch; `None` if unknown."""
    match name:
        case "train_s":
            return sum(model.epoch_totals(each).compute_s for each in range(1, epoch + 1))
        case "model_bytes":
            checkpoint = model.epoch_checkpoint(epoch)
            return None if checkpoint is None else float(checkpoint.size)
        case "peak_bytes":
            return float(model.peaks[0]) or None
        case "peak_gpu_bytes":
            return float(model.peaks[1]) or None
        case _:
            return model.validation.row_s.get(epoch)
