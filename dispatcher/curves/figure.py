"""Learning curves as a figure: select with `curves.view`, draw with `cerebro.figures`.

`api.routes.FIGURES` lists it; `api.views` also renders it as SVG for browsers without scripts. Selection runs under
the read model's lock; drawing runs later.
"""

from __future__ import annotations

from functools import partial

from pydantic import Field

from cerebro import figures
from cerebro.figures import Theme
from cerebro.figures.downsample import FEWEST
from dispatcher.curves.view import CurveQuery
from dispatcher.curves.view import curves as curves_view
from dispatcher.pages.drawing import Drawing, empty_drawing, with_reason
from dispatcher.read_models.read_model import ReadModel


class CurvesFigureQuery(CurveQuery):
    """Curves to draw. `log`: logarithmic y axis. `smoothing`: weight of earlier values."""

    log: bool = False
    smoothing: float = Field(0.0, ge=0, lt=1)
    theme: Theme = "light"


class StaticSvgQuery(CurvesFigureQuery):
    """Curves as SVG. `points`: default lower than for an interactive figure, because SVG cannot zoom. `height`:
    pixels.
    """

    points: int = Field(150, ge=FEWEST, le=1000)
    height: int = Field(320, ge=200, le=1000)


def curves(read_model: ReadModel, query: CurvesFigureQuery, now: float) -> Drawing:
    """Draw learning curves."""
    wanted = query.model_dump(include=set(CurveQuery.model_fields))
    view = curves_view(read_model, CurveQuery.model_validate(wanted))
    if view is None:
        return empty_drawing()
    draw = partial(
        figures.curves,
        view.curves,
        metric=view.metric,
        mode="max" if view.mode == "max" else "min",
        axis=view.axis,
        split=view.split,
        is_log=query.log,
        is_ranked=view.is_ranked,
        smoothing=query.smoothing,
        total=view.total,
        theme=query.theme,
    )
    return with_reason(draw, view.note)
