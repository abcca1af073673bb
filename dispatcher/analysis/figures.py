"""The figures of hyper-parameters: take the models that are asked for, and have `cerebro.figures` draw."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from pydantic import Field, StringConstraints

from cerebro import figures
from cerebro.contract.base import Contract
from cerebro.contract.runs import FitRequest
from cerebro.errors import BadRequestError
from cerebro.figures import Theme
from cerebro.figures.models import ModelSummary
from cerebro.state import Run
from dispatcher.models.query import ModelQuery, matching
from dispatcher.pages.drawing import Drawing, explained, nothing
from dispatcher.reading.read_model import ReadModel

_Names = Annotated[str, StringConstraints(max_length=2000)]
"""Names with commas between."""

MOST_DOTS = 2_000
"""Models of a scatter figure: the best, beyond these."""


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


def parallel(read_model: ReadModel, asked: ParallelQuery, now: float) -> Drawing:
    """Parallel coordinates."""
    run, rows = _rows(read_model, asked)
    if run is None:
        return nothing()
    request = _request(run)
    draw = partial(
        figures.parallel,
        rows,
        metric=request.metric,
        mode=request.mode,
        names=_named(read_model, run, asked.names),
        is_log=asked.log,
        total=len(run.models),
        theme=asked.theme,
    )
    return explained(draw, _no_value(run, rows))


def scatter(read_model: ReadModel, asked: ScatterQuery, now: float) -> Drawing:
    """The objective over each hyper-parameter."""
    run, rows = _rows(read_model, asked)
    if run is None:
        return nothing()
    request = _request(run)
    draw = partial(
        figures.scatter,
        _best(rows, request.mode)[:MOST_DOTS],
        metric=request.metric,
        mode=request.mode,
        names=_named(read_model, run, asked.names),
        is_log=asked.log,
        columns=asked.columns,
        values=_values(run, rows, asked.epoch),
        theme=asked.theme,
    )
    return explained(draw, _no_value(run, rows))


def heatmap(read_model: ReadModel, asked: HeatmapQuery, now: float) -> Drawing:
    """The best objective for each pair of values of two hyper-parameters."""
    run, rows = _rows(read_model, asked)
    if run is None:
        return nothing()
    request = _request(run)
    axes = _named(read_model, run, ",".join(filter(None, (asked.x, asked.y))))
    rest = [name for name in read_model.table(run).varying if name not in axes]
    axes = (*axes, *rest)[:2]
    if len(axes) < 2:
        return nothing("A heat map needs two hyper-parameters that vary.")
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
    return explained(draw, _no_value(run, rows))


def importance(read_model: ReadModel, asked: ModelsFigureQuery, now: float) -> Drawing:
    """Which hyper-parameters tell the best models from the others."""
    run, rows = _rows(read_model, asked)
    if run is None:
        return nothing()
    mode = _request(run).mode
    return explained(
        lambda: figures.importance(figures.importance_of(rows, mode=mode), theme=asked.theme), ""
    )


def _rows(read_model: ReadModel, asked: ModelsFigureQuery) -> tuple[Run | None, list[ModelSummary]]:
    run = read_model.fit(asked.fit)
    if run is None:
        return None, []
    table = read_model.table(run)
    return run, matching(table.rows(), ModelQuery(filter=asked.filter), table.columns())


def _request(run: Run) -> FitRequest:
    assert isinstance(run.request, FitRequest)
    return run.request


def _named(read_model: ReadModel, run: Run, names: str) -> tuple[str, ...]:
    """Hyper-parameters by name, with or without ``hp.``."""
    known = read_model.table(run).columns().hyperparameters
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
