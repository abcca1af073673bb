"""Learning curves: what a model reported, over epochs, rows or time."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from cerebro.contract.runs import FitPlan, FitRequest
from cerebro.contract.tasks import FailureKind
from cerebro.state import Model, Run

Axis = Literal["epoch", "row", "time"]
"""What a curve is drawn over: epochs from 1; rows trained since the model began; seconds since the run's first unit."""

CurveSplit = Literal["train", "valid"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One metric of one model, in the order of `x`; both lists have the same length.

    Attributes:
        model: its id. index: its position in the run's plan, from 0.
        x: see `Axis`.
        y: finite values only.
        broke_at: where the metric was first not finite; `None` if it never was.
        best_at: index into `x` of the best epoch, for curves over epochs.
    """

    model: str
    index: int
    x: tuple[float, ...]
    y: tuple[float, ...]
    broke_at: float | None = None
    best_at: int | None = None


def shown_split(run: Run) -> CurveSplit:
    """The split that models are ranked by."""
    return "valid" if run.is_validated else "train"


def epoch_curves(
    run: Run,
    metric: str,
    *,
    models: Collection[str] | None = None,
    split: CurveSplit | Literal[""] = "",
    axis: Axis = "epoch",
) -> list[Curve]:
    """One point per epoch and model: training means over the epoch's units, or validations.

    Args:
        run: a fit run; any other has no curves.
        metric: a name that the user's functions return.
        models: ids of those wanted; all if left out.
        split: empty for the one that models are ranked by.
        axis: the end of an epoch is where its last unit ended.

    Returns:
        In the order of the plan. A model without a value yet is left out, unless it broke.
    """
    chosen = [
        (index, model)
        for index, model in enumerate(run.models.values())
        if models is None or model.id in models
    ]
    values = split or shown_split(run)
    curves = (_curve(run, model, index, metric=metric, split=values, axis=axis) for index, model in chosen)
    return [curve for curve in curves if curve.x or curve.broke_at is not None]


def _curve(run: Run, model: Model, index: int, *, metric: str, split: CurveSplit, axis: Axis) -> Curve:
    assert isinstance(run.request, FitRequest)
    x: list[float] = []
    y: list[float] = []
    epochs: list[int] = []
    broke_at = None
    for epoch in range(1, model.completed_epochs + 1):
        found = model.validations.get(epoch, {}) if split == "valid" else model.training_metrics(epoch)
        value = found.get(metric)
        if value is None:
            continue
        place = _place(run, model, epoch, axis)
        if math.isfinite(value):
            x.append(place)
            y.append(value)
            epochs.append(epoch)
        elif broke_at is None:
            broke_at = place
    if broke_at is None and model.failure is not None and model.failure.kind is FailureKind.NON_FINITE:
        # The unit that met it was not committed, so no epoch tells of it.
        broke_at = _place(run, model, model.epoch, axis)
    best = model.best_epoch(run.request.metric, run.request.mode, validated=run.is_validated)
    return Curve(
        model=model.id,
        index=index,
        x=tuple(x),
        y=tuple(y),
        broke_at=broke_at,
        best_at=epochs.index(best) if best in epochs else None,
    )


def _place(run: Run, model: Model, epoch: int, axis: Axis) -> float:
    """Where an epoch ends on the axis; for one under way, where its newest unit did."""
    if axis == "epoch":
        return float(epoch)
    visits = model.visits[: epoch * len(model.partitions)]
    if axis == "time":
        return visits[-1].ended - run.origin if visits else 0.0
    rows = run.plan.partitions if isinstance(run.plan, FitPlan) else {}
    return float(sum(visit.rows or rows.get(visit.partition, 0) for visit in visits))
