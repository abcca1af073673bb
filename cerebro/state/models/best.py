"""The order of a fit's models, and the best model over all fits with one metric and data set. Pure.

The rule for equal values: the earlier fit wins, then the earlier model of the fit, then the earlier epoch. So a best
model is replaced only by a better one. `Run.best_models` and `cerebro.figures.models.ranked` follow it, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.state.experiment import ExperimentState
from cerebro.state.models.model import Model
from cerebro.state.runs.run import Run


@dataclass(frozen=True, kw_only=True)
class BestModel:
    """A model at its best epoch, with the metric's value there."""

    run: Run
    model: Model
    epoch: int
    value: float

    @property
    def checkpoint(self) -> CheckpointRef | None:
        """Checkpoint at `epoch`; `None` if its file was removed."""
        found = self.model.epoch_checkpoint(self.epoch)
        return None if found is None or found.name in self.model.checkpoints.removed else found

    @property
    def line(self) -> str:
        """Description for `cerebro status` and `Experiment.status`."""
        metric = self.run.fit_request.metric
        return (
            f"best model: {self.model.id} of {self.run.id}, {metric} {self.value:.4g} at epoch {self.epoch}"
        )


def best_model(
    state: ExperimentState, fit: Run | None = None, *, best_of: Callable[[Run], Model | None] = Run.best_model
) -> BestModel | None:
    """Find the best model over all fits comparable with `fit`.

    Comparable fits have the same metric, mode, split and data set. Preprocessing with other arguments makes another
    data set, whose fits are compared only with each other.

    Args:
        fit: a planned fit. Default: the newest.
        best_of: returns the best model of one fit; a caller may pass a cache.

    Returns:
        `None` while no model has the metric.
    """
    fits = [run for run in state.runs.values() if run.is_planned_fit]
    like = fit or (fits[-1] if fits else None)
    found: BestModel | None = None
    for run in fits:
        if like is None or _ranking(run) != _ranking(like):
            continue
        best = best_in(run, best_of=best_of)
        sign = 1 if run.fit_request.mode == "max" else -1
        if best and (found is None or sign * best.value > sign * found.value):
            found = best
    return found


def ranked_models(run: Run) -> list[tuple[Model, int | None, float | None]]:
    """Return the models of a fit with their best epoch and its value, best first, models without a value last."""
    name, sign = run.fit_request.metric, -1 if run.fit_request.mode == "max" else 1
    rows = []
    for model in run.models.values():
        epoch = run.best_epoch(model)
        rows.append((model, epoch, model.metric(name, epoch, validated=run.is_validated) if epoch else None))
    return sorted(rows, key=lambda row: (row[2] is None, 0.0 if row[2] is None else sign * row[2]))


def best_in(run: Run, *, best_of: Callable[[Run], Model | None] = Run.best_model) -> BestModel | None:
    """Find the best model of one fit; `None` while none has the metric."""
    model = best_of(run)
    epoch = run.best_epoch(model) if model else None
    if model is None or epoch is None:
        return None
    value = model.metric(run.fit_request.metric, epoch, validated=run.is_validated)
    return None if value is None else BestModel(run=run, model=model, epoch=epoch, value=value)


def _ranking(run: Run) -> tuple[str, str, bool, str | None]:
    """Metric, mode, split and data set: two values are comparable only if all four are equal."""
    dataset = run.plan.dataset if run.plan else None
    return run.fit_request.metric, run.fit_request.mode, run.is_validated, dataset
