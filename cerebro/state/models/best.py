"""The order of a fit's models, and the best model over all fits with one metric and data set. Pure.

The rule for equal values: the earlier fit wins, then the earlier model of the fit, then the earlier epoch. So a best
model is replaced only by a better one. `Run.best_models` and `cerebro.figures.models.ranked` follow it, too.

With several objectives or constraints: models that meet all constraints first, then by non-dominated rank, then by the
objectives in their order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.search.pareto import Point, ranks
from cerebro.state.experiment import ExperimentState
from cerebro.state.models.model import Model
from cerebro.state.runs.compared_values import point_of
from cerebro.state.runs.run import Run


@dataclass(frozen=True, kw_only=True)
class BestModel:
    """A model at its best epoch, with the metric's value there.

    Attributes:
        point: its objectives and constraints; empty for a fit with one objective and no constraint.
    """

    run: Run
    model: Model
    epoch: int
    value: float
    point: Point = field(default=Point(()))

    @property
    def key(self) -> tuple[bool, tuple[float, ...]]:
        """Smaller for a better model of comparable fits."""
        sign = -1 if self.run.fit_request.mode == "max" else 1
        return not self.point.is_feasible, self.point.losses or (sign * self.value,)

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


@dataclass(frozen=True, kw_only=True)
class RankedModel:
    """A model in the order of a fit.

    Attributes:
        epoch, value: best epoch and its metric; `None` without a value.
        rank: non-dominated rank, from 1: the fronts of models that meet all constraints, then those of the others. 0
            without a value, or for a fit with one objective and no constraint.
        point: as in `BestModel`.
    """

    model: Model
    epoch: int | None
    value: float | None
    rank: int = 0
    point: Point = field(default=Point(()))

    @property
    def words(self) -> str:
        """Describe the rank; empty without one."""
        if not self.rank:
            return ""
        return f"front {self.rank}" if self.point.is_feasible else "violates a constraint"


def best_model(
    state: ExperimentState,
    fit: Run | None = None,
    *,
    best_of: Callable[[Run], Model | None] = Run.best_model,
) -> BestModel | None:
    """Find the best model over all fits comparable with `fit`.

    Comparable fits have the same objectives, constraints, split and data set. Preprocessing with other arguments makes
    another data set, whose fits are compared only with each other.

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
        if best and (found is None or best.key < found.key):
            found = best
    return found


def ranked_models(run: Run) -> list[RankedModel]:
    """Return the models of a fit, best first, models without a value last.

    The order is as in `Run.best_models`. It has no repeats, and only the first fold of a configuration.
    """
    rows = [_unranked(run, model) for model in run.models.values() if model.is_listed]
    if not run.fit_request.is_multi_objective:
        sign, means = -1 if run.fit_request.mode == "max" else 1, run.final_means()

        def key(row: RankedModel) -> tuple[bool, bool, float]:
            value = means.get(row.model.id, row.value)
            return value is None, row.model.id not in means, sign * (value or 0.0)

        return sorted(rows, key=key)
    known = [row for row in rows if row.value is not None]
    by_rank = ranks([row.point for row in known])
    ranked = [replace(row, rank=rank) for row, rank in zip(known, by_rank, strict=True)]
    ranked.sort(key=lambda row: (row.rank, row.point.losses))
    return [*ranked, *(row for row in rows if row.value is None)]


def pareto_front(run: Run) -> list[RankedModel]:
    """Return the models that meet all constraints and that no other one dominates; none with one objective."""
    return [row for row in ranked_models(run) if row.rank == 1 and row.point.is_feasible]


def _unranked(run: Run, model: Model) -> RankedModel:
    epoch = run.best_epoch(model)
    if epoch is None:
        return RankedModel(model=model, epoch=None, value=None)
    value = model.metric(run.fit_request.metric, epoch, validated=run.is_validated)
    return RankedModel(model=model, epoch=epoch, value=value, point=point_of(run, model, epoch))


def best_in(run: Run, *, best_of: Callable[[Run], Model | None] = Run.best_model) -> BestModel | None:
    """Find the best model of one fit; `None` while no model has the metric."""
    model = best_of(run)
    epoch = run.best_epoch(model) if model else None
    if model is None or epoch is None:
        return None
    value = model.metric(run.fit_request.metric, epoch, validated=run.is_validated)
    if model.lineage.fold is not None:
        value = run.final_means().get(model.id, value)
    if value is None:
        return None
    return BestModel(run=run, model=model, epoch=epoch, value=value, point=point_of(run, model, epoch))


def _ranking(run: Run) -> tuple[object, ...]:
    """Return objectives, constraints, split, folds and data set: values are comparable only if all are equal."""
    request, dataset = run.fit_request, run.plan.dataset if run.plan else None
    objectives = tuple(request.objectives.items()) or ((request.metric, request.mode),)
    return objectives, request.constraints, run.is_validated, request.folds, dataset
