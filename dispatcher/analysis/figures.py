"""The figures of hyper-parameters: take the models that are asked for, and have `cerebro.figures` draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

from pydantic import Field, StringConstraints

from cerebro import figures
from cerebro.contract.base import Contract
from cerebro.errors import BadRequestError
from cerebro.figures import Figure, ModelSummary, Theme
from cerebro.figures.models import ranked, values_at
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

    def draw(run: Run, rows: Sequence[ModelSummary]) -> Callable[..., Figure]:
        names = _named(read_model, run, asked.names)
        return partial(figures.parallel, rows, names=names, is_log=asked.log, total=len(run.models))

    return _drawing(read_model, asked, draw)


def scatter(read_model: ReadModel, asked: ScatterQuery, now: float) -> Drawing:
    """The objective over each hyper-parameter."""

    def draw(run: Run, rows: Sequence[ModelSummary]) -> Callable[..., Figure]:
        return partial(
            figures.scatter,
            ranked(rows, run.fit_request.mode)[:MOST_DOTS],
            names=_named(read_model, run, asked.names),
            is_log=asked.log,
            columns=asked.columns,
            values=values_at(run, asked.epoch) if asked.epoch else None,
        )

    return _drawing(read_model, asked, draw)


def heatmap(read_model: ReadModel, asked: HeatmapQuery, now: float) -> Drawing:
    """The best objective for each pair of values of two hyper-parameters."""

    def draw(run: Run, rows: Sequence[ModelSummary]) -> Callable[..., Figure] | None:
        axes = _named(read_model, run, ",".join(filter(None, (asked.x, asked.y))))
        rest = [name for name in read_model.table(run).varying if name not in axes]
        axes = (*axes, *rest)[:2]
        if len(axes) < 2:
            return None
        values = values_at(run, asked.epoch) if asked.epoch else None
        return partial(figures.heatmap, rows, x=axes[0], y=axes[1], values=values)

    return _drawing(read_model, asked, draw, why="A heat map needs two hyper-parameters that vary.")


def importance(read_model: ReadModel, asked: ModelsFigureQuery, now: float) -> Drawing:
    """Which hyper-parameters tell the best models from the others."""
    run, rows = _rows(read_model, asked)
    if run is None:
        return nothing()
    mode = run.fit_request.mode
    return explained(
        lambda: figures.importance(figures.importance_of(rows, mode=mode), theme=asked.theme), ""
    )


def _drawing(
    read_model: ReadModel,
    asked: ModelsFigureQuery,
    draw: Callable[[Run, Sequence[ModelSummary]], Callable[..., Figure] | None],
    *,
    why: str = "",
) -> Drawing:
    """What `draw` makes of the models, in the theme; if it makes nothing of them, `why`."""
    run, rows = _rows(read_model, asked)
    if run is None:
        return nothing()
    request, drawn = run.fit_request, draw(run, rows)
    if drawn is None:
        return nothing(why)
    if not rows:
        why = "No model fits the filter."
    elif all(row.best is None for row in rows):
        why = f"{request.metric!r} is known once a model has completed its first epoch."
    else:
        why = ""
    return explained(lambda: drawn(metric=request.metric, mode=request.mode, theme=asked.theme), why)


def _rows(read_model: ReadModel, asked: ModelsFigureQuery) -> tuple[Run | None, list[ModelSummary]]:
    run = read_model.fit(asked.fit)
    if run is None:
        return None, []
    table = read_model.table(run)
    return run, matching(table.rows(), ModelQuery(filter=asked.filter), table.columns())


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
