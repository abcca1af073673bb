"""Figures of an experiment: asks the log, and has `cerebro.figures` draw.

Each function takes what is followed, what is asked for and the time, and returns how to draw it: a `Drawing` needs
nothing that changes, so whoever calls it need not hold the experiment. It gives Plotly's ``{"data", "layout"}``; where
there is nothing to draw yet, ``layout.meta.empty`` says why.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from cerebro import analysis, figures
from cerebro.analysis.downsample import FEWEST
from cerebro.analysis.summary import ModelSummary
from cerebro.contract.base import Contract
from cerebro.contract.runs import FitRequest
from cerebro.errors import BadRequestError
from cerebro.figures import Figure, Theme
from cerebro.state import Run
from dispatcher.curves.view import CurveQuery
from dispatcher.curves.view import curves as curves_view
from dispatcher.models.query import ModelQuery, matching
from dispatcher.reading.read_model import Followed

Drawing = Callable[[], Figure]

_Names = Annotated[str, StringConstraints(max_length=2000)]
"""Names with commas between."""

MOST_DOTS = 2_000
"""Models of a scatter figure: the best, beyond these."""


class CurvesFigureQuery(CurveQuery):
    """See `CurveQuery`; `log` is the vertical axis, `smoothing` the weight of what was before."""

    log: bool = False
    smoothing: float = Field(0.0, ge=0, lt=1)
    theme: Theme = "light"


class StillQuery(CurvesFigureQuery):
    """`points`: fewer than of a figure, since nobody zooms in. `height`: in pixels; the width is the reader's."""

    points: int = Field(150, ge=FEWEST, le=1000)
    height: int = Field(320, ge=200, le=1000)


class ModelsFigureQuery(Contract):
    """Which models of a fit run: those that fit `filter`."""

    fit: str = Field("", max_length=60)
    filter: str = Field("", max_length=2000)
    theme: Theme = "light"


class ParallelQuery(ModelsFigureQuery):
    """`names`: hyper-parameters, commas between; those that vary if empty. `log`: the objective's axis."""

    names: _Names = ""
    log: bool = False


class ScatterQuery(ParallelQuery):
    """`epoch`: the objective there, so that models that are further do not look better; 0: at each one's best.
    `columns`: panels beside each other; one suits a phone."""

    epoch: int = Field(0, ge=0, le=1_000_000)
    columns: int = Field(3, ge=1, le=10)


class HeatmapQuery(ModelsFigureQuery):
    """`x`, `y`: hyper-parameters; the first two that vary if empty."""

    x: str = Field("", max_length=200)
    y: str = Field("", max_length=200)
    epoch: int = Field(0, ge=0, le=1_000_000)


class ScheduleFigureQuery(Contract):
    """`model` is highlighted."""

    fit: str = Field("", max_length=60)
    model: str = Field("", max_length=100)
    theme: Theme = "light"


class EtlFigureQuery(Contract):
    """Nothing but the theme."""

    theme: Theme = "light"


def curves(followed: Followed, asked: CurvesFigureQuery, now: float) -> Drawing:
    """Learning curves."""
    wanted = asked.model_dump(include=set(CurveQuery.model_fields))
    view = curves_view(followed, CurveQuery.model_validate(wanted))
    if view is None:
        return _nothing()
    draw = partial(
        figures.curves,
        view.curves,
        metric=view.metric,
        mode=_mode(view.mode),
        axis=view.axis,
        split=view.split,
        is_log=asked.log,
        smoothing=asked.smoothing,
        total=view.total,
        theme=asked.theme,
    )
    return _told(draw, view.note)


def parallel(followed: Followed, asked: ParallelQuery, now: float) -> Drawing:
    """Parallel coordinates."""
    run, rows = _rows(followed, asked)
    if run is None:
        return _nothing()
    request = _request(run)
    draw = partial(
        figures.parallel,
        rows,
        metric=request.metric,
        mode=request.mode,
        names=_named(followed, run, asked.names),
        is_log=asked.log,
        total=len(run.models),
        theme=asked.theme,
    )
    return _told(draw, _no_value(run, rows))


def scatter(followed: Followed, asked: ScatterQuery, now: float) -> Drawing:
    """The objective over each hyper-parameter."""
    run, rows = _rows(followed, asked)
    if run is None:
        return _nothing()
    request = _request(run)
    draw = partial(
        figures.scatter,
        _best(rows, request.mode)[:MOST_DOTS],
        metric=request.metric,
        mode=request.mode,
        names=_named(followed, run, asked.names),
        is_log=asked.log,
        columns=asked.columns,
        values=_values(run, rows, asked.epoch),
        theme=asked.theme,
    )
    return _told(draw, _no_value(run, rows))


def heatmap(followed: Followed, asked: HeatmapQuery, now: float) -> Drawing:
    """The best objective for each pair of values of two hyper-parameters."""
    run, rows = _rows(followed, asked)
    if run is None:
        return _nothing()
    request = _request(run)
    axes = _named(followed, run, ",".join(filter(None, (asked.x, asked.y))))
    rest = [name for name in followed.table(run).varying if name not in axes]
    axes = (*axes, *rest)[:2]
    if len(axes) < 2:
        return _nothing("A heat map needs two hyper-parameters that vary.")
    draw = partial(
        figures.heatmap,
        rows,
        metric=request.metric,
        mode=request.mode,
        x=axes[0],
        y=axes[1],
        values=_values(run, rows, asked.epoch),
        theme=asked.theme,
    )
    return _told(draw, _no_value(run, rows))


def importance(followed: Followed, asked: ModelsFigureQuery, now: float) -> Drawing:
    """Which hyper-parameters tell the best models from the others."""
    run, rows = _rows(followed, asked)
    if run is None:
        return _nothing()
    mode = _request(run).mode
    return _told(lambda: figures.importance(analysis.importance(rows, mode=mode), theme=asked.theme), "")


def schedule(followed: Followed, asked: ScheduleFigureQuery, now: float) -> Drawing:
    """What ran where when."""
    run = followed.fit(asked.fit)
    if run is None:
        return _nothing()
    spans = analysis.spans(run, now)
    draw = partial(
        figures.schedule,
        spans,
        workers=analysis.crew(followed.state, spans),
        models=list(run.models),
        landmarks=analysis.landmarks(followed.state, run, now),
        planned=analysis.planned(run, now),
        highlight=asked.model,
        theme=asked.theme,
    )
    return _told(draw, f"No unit of {run.id} has started yet, and no plan is followed.")


def etl(followed: Followed, asked: EtlFigureQuery, now: float) -> Drawing:
    """How far preprocessing is."""
    runs = [run for run in followed.state.runs.values() if run.kind == "etl" and run.plan is not None]
    dataset = followed.state.datasets.get(runs[-1].plan.dataset) if runs and runs[-1].plan else None
    if dataset is None:
        return _nothing("Nothing is preprocessed yet: run_etl plans it.")
    live = {key: point.rows for key, point in followed.live.newest.items()}
    return _told(partial(figures.etl, analysis.etl_progress(dataset, runs[-1], live), theme=asked.theme), "")


# --- what is asked for --------------------------------------------------------------------------


def _rows(followed: Followed, asked: ModelsFigureQuery) -> tuple[Run | None, list[ModelSummary]]:
    run = followed.fit(asked.fit)
    if run is None:
        return None, []
    table = followed.table(run)
    return run, matching(table.rows(), ModelQuery(filter=asked.filter), table.columns())


def _request(run: Run) -> FitRequest:
    assert isinstance(run.request, FitRequest)
    return run.request


def _mode(mode: str) -> Literal["min", "max"]:
    return "max" if mode == "max" else "min"


def _named(followed: Followed, run: Run, names: str) -> tuple[str, ...]:
    """Hyper-parameters by name, with or without ``hp.``."""
    known = followed.table(run).columns().hyperparameters
    wanted = dict.fromkeys(part.strip() for part in names.split(",") if part.strip())
    found = [name if name in known else name.removeprefix("hp.") for name in wanted]
    unknown = [name for name in found if name not in known]
    if unknown:
        raise BadRequestError(
            f"{run.id} has no hyper-parameter {', '.join(unknown)}: there are {', '.join(known) or 'none'}"
        )
    return tuple(found)


def _values(run: Run, rows: list[ModelSummary], epoch: int) -> dict[str, float] | None:
    if not epoch:
        return None
    metric = _request(run).metric
    known = ((row.id, run.models[row.id].metric(metric, epoch, validated=run.is_validated)) for row in rows)
    return {model: value for model, value in known if value is not None}


def _best(rows: list[ModelSummary], mode: str) -> list[ModelSummary]:
    sign = 1 if mode == "min" else -1
    return sorted(rows, key=lambda row: (row.best is None, sign * (row.best or 0.0)))


def _no_value(run: Run, rows: list[ModelSummary]) -> str:
    if not rows:
        return "No model fits the filter."
    if not any(row.best is not None for row in rows):
        return f"{_request(run).metric!r} is known once a model has completed its first epoch."
    return ""


# --- nothing to draw ----------------------------------------------------------------------------


def _nothing(why: str = "No model is trained yet: run_fit plans the first ones.") -> Drawing:
    return lambda: {"data": [], "layout": {"meta": {"empty": why}}}


def _told(draw: Drawing, why: str) -> Drawing:
    """The figure; one without marks says why."""

    def told() -> Figure:
        figure = draw()
        if figure["data"]:
            return figure
        layout: dict[str, Any] = dict(figure["layout"])
        known = layout.get("meta", {})
        layout["meta"] = {**known, "empty": why or known.get("description", "There is nothing to draw yet.")}
        return {"data": [], "layout": layout}

    return told
