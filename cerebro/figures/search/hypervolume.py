"""Hypervolume over models, time or trained epochs: the part of the objectives' ranges that the models dominate. Pure.

Each objective is scaled to its range over all models that meet the constraints: 0 is the best value, 1 the worst one.
The hypervolume is the share of the box between them that some model dominates (Zitzler and Thiele, 1998). A model
counts with the values at its best epoch, from the end of that epoch on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cerebro.contract.runs import FitRequest
from cerebro.figures.frame import Duration, Figure, axis, cut, duration, empty, figure, lines, significant
from cerebro.figures.models import ModelSummary
from cerebro.figures.palette import THEME_COLORS, Theme
from cerebro.figures.search.best_so_far import AXIS_TITLES, Observation, ProgressAxis
from cerebro.search.pareto import hypervolume_gain


@dataclass(frozen=True, kw_only=True, slots=True)
class HypervolumeStep:
    """A model that enlarges the dominated part.

    Attributes:
        x: position in the unit of `ProgressAxis`.
        share: dominated share of the box, from 0 to 1.
    """

    x: float
    share: float
    model: str
    epoch: int


def hypervolume_steps(
    rows: Sequence[ModelSummary], observations: Iterable[Observation]
) -> list[HypervolumeStep]:
    """Return the models that enlarge the dominated part, in the order of `x`.

    Args:
        rows: models of a fit with several objectives.
        observations: position of each epoch, see `cerebro.figures.search.observations`.
    """
    at = {(each.model, each.epoch): each.x for each in observations}
    known = [
        (at[row.id, row.best_epoch], row)
        for row in rows
        if row.best_epoch is not None
        and (row.id, row.best_epoch) in at
        and not row.is_repeat
        and row.point.is_known
        and row.point.is_feasible
    ]
    if not known:
        return []
    known.sort(key=lambda each: (each[0], each[1].index))
    axes = list(zip(*(row.point.losses for _, row in known), strict=True))
    ranges = [(min(axis), (max(axis) - min(axis)) or 1.0) for axis in axes]
    # A little beyond the worst value, so the first model has a volume, also with the worst values of all.
    reference = (_REFERENCE,) * len(ranges)
    steps: list[HypervolumeStep] = []
    front: list[tuple[float, ...]] = []
    volume = 0.0
    for x, row in known:
        point = tuple((loss - low) / size for loss, (low, size) in zip(row.point.losses, ranges, strict=True))
        if (gain := hypervolume_gain(point, front, reference)) <= 0:
            continue
        volume += gain
        front = [each for each in front if not all(a <= b for a, b in zip(point, each, strict=True))]
        front.append(point)
        share = min(1.0, volume / _REFERENCE ** len(ranges))
        steps.append(HypervolumeStep(x=x, share=share, model=row.id, epoch=row.best_epoch or 0))
    return steps


_REFERENCE = 1.1
"""Reference point in each scaled objective."""


def hypervolume(
    rows: Sequence[ModelSummary],
    request: FitRequest,
    observations: Sequence[Observation],
    *,
    axis_unit: ProgressAxis = "model",
    theme: Theme = "light",
) -> Figure:
    """Draw the dominated share as steps.

    Args:
        rows, observations: as in `hypervolume_steps`.
        axis_unit: the unit of the observations' positions.
    """
    title = "Hypervolume"
    if len(request.objectives) < 2:
        return empty("hypervolume", "the run has one objective", theme=theme, title=title)
    steps = hypervolume_steps(rows, observations)
    if not steps:
        return empty(
            "hypervolume", "no model has all objectives and meets all constraints", theme=theme, title=title
        )
    colors = THEME_COLORS[theme]
    scale = duration(observations[-1].x) if axis_unit == "time" else Duration(1.0, "")
    unit = AXIS_TITLES.get(axis_unit) or f"time since the start ({scale.name})"
    last = max(steps[-1].x, observations[-1].x)
    drawn = [(each.x, each) for each in steps] + ([(last, steps[-1])] if last > steps[-1].x else [])
    names = ", ".join(request.objectives)
    return figure(
        "hypervolume",
        [
            {
                "type": "scatter",
                "mode": "lines+markers",
                "x": [significant(scale.of(x)) for x, _ in drawn],
                "y": [significant(each.share) for _, each in drawn],
                "line": {"shape": "hv", "width": 2.5, "color": colors.ink},
                "marker": {"size": 6},
                "customdata": [[each.model] for _, each in drawn],
                "hoverinfo": "text",
                "hovertext": [
                    lines(f"{each.model}: {each.share:.1%} dominated", f"epoch {each.epoch}")
                    for _, each in drawn
                ],
            }
        ],
        theme=theme,
        title=title,
        description=f"Share of the ranges of {names} that the models dominate, over {unit}: {steps[-1].share:.1%} "
        f"after {len(steps):,} improvements.",
        table=cut(
            ((significant(scale.of(each.x)), each.share, each.model, each.epoch) for each in steps),
            (unit, "dominated share", "model", "epoch"),
        ),
        layout={
            "xaxis": axis(colors, unit, rangemode="tozero"),
            "yaxis": axis(colors, "dominated share", tickformat=".0%", range=[0, 1]),
        },
    )
