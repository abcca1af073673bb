"""Best value over models, time or trained epochs. Pure.

Over models, each model has one dot, its best value. Over time and epochs, each completed epoch has one dot.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from cerebro.figures.frame import (
    Duration,
    Figure,
    axis,
    cut,
    duration,
    empty,
    figure,
    lines,
    number,
    significant,
)
from cerebro.figures.models import ModelSummary, summaries
from cerebro.figures.palette import THEME_COLORS, Theme, colour
from cerebro.state import Model, Run

ProgressAxis = Literal["model", "time", "epoch"]
"""Unit of the x axis: models in the order of their suggestion, seconds since the first sub-epoch, trained epochs."""

MAX_DOTS = 2_000
"""Maximum number of dots. Improvements are always drawn."""

AXIS_TITLES = {"model": "models", "epoch": "epochs trained, all models"}
"""Titles of x axes without a unit of time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """A value of the objective.

    Attributes:
        model, index: the model and its position in the run's plan, from 0.
        epoch: epoch of the value.
        x: position in the unit of `ProgressAxis`.
    """

    model: str
    index: int
    epoch: int
    x: float
    value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochValues:
    """The objective of one model after each epoch that it trained itself, in few bytes.

    Attributes:
        first_epoch: epoch of the first value.
        ended: end of each epoch in seconds of the store's clock.
        values: objective of each epoch; NaN without one.
    """

    model: str
    index: int
    first_epoch: int
    ended: array[float]
    values: array[float]


def epoch_values(run: Run, model: Model, index: int) -> EpochValues:
    """Return the values of one model of a fit run; `index` is its position, from 0."""
    metric, validated = run.fit_request.metric, run.is_validated
    epochs = range(model.inherited_epochs + 1, model.completed_epochs + 1)
    ends = (model.sub_epochs[model.sub_epochs_until(epoch) - 1].ended for epoch in epochs)
    values = (model.metric(metric, epoch, validated=validated) for epoch in epochs)
    return EpochValues(
        model=model.id,
        index=index,
        first_epoch=epochs.start,
        ended=array("d", ends),
        values=array("d", (math.nan if value is None else value for value in values)),
    )


def observations(run: Run, axis: ProgressAxis = "model") -> list[Observation]:
    """Return the finite values of the objective in a fit run, in the order of `x`. Inherited epochs are omitted."""
    if axis == "model":
        return best_values(summaries(run))
    models = (
        epoch_values(run, model, index) for index, model in enumerate(run.models.values()) if model.is_listed
    )
    return values_of_epochs(models, axis, run.clock.first_start)


def best_values(rows: Iterable[ModelSummary]) -> list[Observation]:
    """Return the best value of each model except repeats, at the model's position."""
    return [
        Observation(model=row.id, index=row.index, epoch=row.best_epoch, x=row.index + 1.0, value=row.best)
        for row in rows
        if row.best_epoch and row.best is not None and row.is_listed
    ]


def values_of_epochs(models: Iterable[EpochValues], axis: ProgressAxis, began: float) -> list[Observation]:
    """Return the values of all epochs in the order of their ends; `began` is the zero of the axis `time`."""
    ends = sorted(
        (ended, model.index, epoch, value, model.model)
        for model in models
        for epoch, (ended, value) in enumerate(
            zip(model.ended, model.values, strict=True), start=model.first_epoch
        )
    )
    return [
        Observation(
            model=model, index=index, epoch=epoch, x=ended - began if axis == "time" else count, value=value
        )
        for count, (ended, index, epoch, value, model) in enumerate(ends, start=1)
        if not math.isnan(value)
    ]


def best_so_far(
    observations: Sequence[Observation],
    *,
    metric: str,
    mode: Literal["min", "max"],
    axis_unit: ProgressAxis = "model",
    is_log: bool = False,
    theme: Theme = "light",
) -> Figure:
    """Draw the best value at each moment as steps, and each value as a dot.

    Args:
        observations: see `observations`.
        axis_unit: the unit of the observations' positions.
        is_log: True for a logarithmic y axis, which omits values that are not positive.
    """
    title = f"Best {metric} so far"
    if not observations:
        return empty("best_so_far", f"no model has a value of {metric} yet", theme=theme, title=title)
    colors = THEME_COLORS[theme]
    scale = duration(observations[-1].x) if axis_unit == "time" else Duration(1.0, "")
    steps = _improvements(observations, mode)
    dots = _thinned(observations, steps)
    last = replace(steps[-1], x=observations[-1].x)
    drawn_steps = [*steps, *([last] if last.x > steps[-1].x else [])]
    common = {"type": "scatter", "hoverinfo": "text"}
    traces: list[dict[str, Any]] = [
        common
        | {
            "mode": "markers",
            "name": "values",
            "x": [significant(scale.of(each.x)) for each in dots],
            "y": [significant(each.value) for each in dots],
            "marker": {"size": 6, "color": [colour(each.index, theme) for each in dots], "opacity": 0.7},
            "customdata": [[each.model] for each in dots],
            "hovertext": [_hover(each, metric) for each in dots],
        },
        common
        | {
            "mode": "lines",
            "name": "best so far",
            "x": [significant(scale.of(each.x)) for each in drawn_steps],
            "y": [significant(each.value) for each in drawn_steps],
            "line": {"shape": "hv", "width": 2.5, "color": colors.ink},
            "customdata": [[each.model] for each in drawn_steps],
            "hovertext": [_hover(each, f"best {metric}") for each in drawn_steps],
        },
    ]
    best = steps[-1]
    unit = AXIS_TITLES.get(axis_unit) or f"time since the start ({scale.name})"
    return figure(
        "best_so_far",
        traces,
        theme=theme,
        title=title,
        description=f"Best {metric} over {unit}: {number(best.value)}, of {best.model}, after {len(steps):,} "
        f"improvements in {len(observations):,} values.",
        table=cut(
            ((significant(scale.of(each.x)), each.value, each.model, each.epoch) for each in steps),
            (unit, f"best {metric}", "model", "epoch"),
        ),
        layout={
            "xaxis": axis(colors, unit, rangemode="tozero"),
            "yaxis": axis(colors, metric, type="log" if is_log else "linear", hoverformat=".6~g"),
        },
    )


def _improvements(observations: Sequence[Observation], mode: str) -> list[Observation]:
    sign = 1 if mode == "max" else -1
    steps: list[Observation] = []
    for each in observations:
        if not steps or sign * each.value > sign * steps[-1].value:
            steps.append(each)
    return steps


def _thinned(observations: Sequence[Observation], steps: Sequence[Observation]) -> list[Observation]:
    """Return at most about `MAX_DOTS` values, evenly chosen, with all improvements."""
    every = math.ceil(len(observations) / MAX_DOTS)
    if every == 1:
        return list(observations)
    chosen = {id(each) for each in (*observations[::every], *steps)}
    return [each for each in observations if id(each) in chosen]


def _hover(each: Observation, metric: str) -> str:
    return lines(f"{each.model}: {metric} {number(each.value)}", f"epoch {each.epoch}")
