"""The figure of learning curves: asks the view, and has `cerebro.figures` draw."""

from __future__ import annotations

from functools import partial

from pydantic import Field

from cerebro import figures
from cerebro.figures import Theme
from cerebro.figures.downsample import FEWEST
from dispatcher.curves.view import CurveQuery
from dispatcher.curves.view import curves as curves_view
from dispatcher.pages.drawing import Drawing, explained, nothing
from dispatcher.reading.read_model import ReadModel


class CurvesFigureQuery(CurveQuery):
    """Which learning curves to draw. `log`: of the vertical axis. `smoothing`: the weight of earlier values."""

    log: bool = False
    smoothing: float = Field(0.0, ge=0, lt=1)
    theme: Theme = "light"


class StaticSvgQuery(CurvesFigureQuery):
    """`points`: fewer than of a figure, since nobody zooms in. `height`: in pixels; the width is the reader's."""

    points: int = Field(150, ge=FEWEST, le=1000)
    height: int = Field(320, ge=200, le=1000)


def curves(read_model: ReadModel, asked: CurvesFigureQuery, now: float) -> Drawing:
    """Learning curves."""
    wanted = asked.model_dump(include=set(CurveQuery.model_fields))
    view = curves_view(read_model, CurveQuery.model_validate(wanted))
    if view is None:
        return nothing()
    draw = partial(
        figures.curves,
        view.curves,
        metric=view.metric,
        mode="max" if view.mode == "max" else "min",
        axis=view.axis,
        split=view.split,
        is_log=asked.log,
        smoothing=asked.smoothing,
        total=view.total,
        theme=asked.theme,
    )
    return explained(draw, view.note)
