"""Figures of hyperparameters: select the models, then draw with `cerebro.figures`.

`api.routes.FIGURES` lists the functions. Each selects models under the read model's lock and returns a `Drawing`,
which `api.views` calls after it has released the lock. A scatter figure has at most 1,000 models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

from pydantic import Field, StringConstraints

from cerebro import figures
from cerebro.contract.base import Contract
from cerebro.errors import BadRequestError
from cerebro.figures import Figure, ModelSummary, ProgressAxis, Theme
from cerebro.figures.models import ranked, values_at
from cerebro.figures.search import best_values, values_of_epochs
from cerebro.state import Run
from dispatcher.models.query import ModelQuery, matching
from dispatcher.pages.drawing import Drawing, empty_drawing, with_reason
from dispatcher.read_models.read_model import ReadModel

_Names = Annotated[str, StringConstraints(max_length=2000)]
"""Names separated by commas."""

MAX_MODELS = 1_000
"""Maximum number of models in a scatter figure; the best are drawn."""


class ModelsFigureQuery(Contract):
    """Models of a fit run that match `filter`."""

    fit: str = Field("", max_length=60)
    filter: str = Field("", max_length=2000)
    theme: Theme = "light"


class ParallelQuery(ModelsFigureQuery):
    """`names`: hyperparameters separated by commas, by default all that vary. `log`: logarithmic objective."""

    names: _Names = ""
    log: bool = False


class ScatterQuery(ParallelQuery):
    """`epoch`: plot the objective at this epoch, so that models with more epochs do not look better; 0 plots the
    best. `columns`: panels per row; one suits a phone.
    """

    epoch: int = Field(0, ge=0, le=1_000_000)
    columns: int = Field(3, ge=1, le=10)


class BestSoFarQuery(ModelsFigureQuery):
    """`axis`: see `cerebro.figures.ProgressAxis`. `log`: logarithmic objective. The figure ignores `filter`."""

    axis: ProgressAxis = "model"
    log: bool = False


class HypervolumeQuery(ModelsFigureQuery):
    """`axis`: see `cerebro.figures.ProgressAxis`. The figure ignores `filter`."""

    axis: ProgressAxis = "model"


class RungsFigureQuery(ModelsFigureQuery):
    """`log`: logarithmic objective. The figure ignores `filter`."""

    log: bool = False


class ParetoQuery(ModelsFigureQuery):
    """`x`, `y`: objectives or values in constraints. `log`: logarithmic axes."""

    x: str = Field("", max_length=200)
    y: str = Field("", max_length=200)
    log: bool = False


class HeatmapQuery(ModelsFigureQuery):
    """`x`, `y`: hyperparameters, by default the first two that vary."""

    x: str = Field("", max_length=200)
    y: str = Field("", max_length=200)
    epoch: int = Field(0, ge=0, le=1_000_000)


def parallel(read_model: ReadModel, query: ParallelQuery, now: float) -> Drawing:
    """Draw parallel coordinates."""

    def draw(run: Run, rows: Sequence[ModelSummary]) -> Callable[..., Figure]:
        names = _named(read_model, run, query.names)
        return partial(figures.parallel, rows, names=names, is_log=query.log, total=len(run.models))

    return _drawing(read_model, query, draw)


def scatter(read_model: ReadModel, query: ScatterQuery, now: float) -> Drawing:
    """Draw the objective over each hyperparameter."""

    def draw(run: Run, rows: Sequence[ModelSummary]) -> Callable[..., Figure]:
        return partial(
            figures.scatter,
            ranked(rows, run.fit_request.mode)[:MAX_MODELS],
            names=_named(read_model, run, query.names),
            is_log=query.log,
            columns=query.columns,
            values=values_at(run, query.epoch) if query.epoch else None,
        )

    return _drawing(read_model, query, draw)


def heatmap(read_model: ReadModel, query: HeatmapQuery, now: float) -> Drawing:
    """Draw the best objective for each pair of values of two hyperparameters."""
    return _over_two(read_model, query, figures.heatmap, "A heat map")


def contour(read_model: ReadModel, query: HeatmapQuery, now: float) -> Drawing:
    """Draw contours of the objective over two hyperparameters."""
    return _over_two(read_model, query, figures.contour, "A contour plot")


def _over_two(
    read_model: ReadModel, query: HeatmapQuery, builder: Callable[..., Figure], name: str
) -> Drawing:
    def draw(run: Run, rows: Sequence[ModelSummary]) -> Callable[..., Figure] | None:
        axes = _named(read_model, run, ",".join(filter(None, (query.x, query.y))))
        rest = [name for name in read_model.table(run).varying if name not in axes]
        axes = (*axes, *rest)[:2]
        if len(axes) < 2:
            return None
        values = values_at(run, query.epoch) if query.epoch else None
        return partial(builder, rows, x=axes[0], y=axes[1], values=values)

    return _drawing(read_model, query, draw, why=f"{name} needs two hyperparameters that vary.")


def pareto(read_model: ReadModel, query: ParetoQuery, now: float) -> Drawing:
    """Draw the Pareto front of the selected models."""
    run, rows = _select(read_model, query)
    if run is None:
        return empty_drawing()
    request = run.fit_request
    draw = partial(
        figures.pareto,
        ranked(rows, request.mode),
        request,
        x=query.x,
        y=query.y,
        is_log=query.log,
        theme=query.theme,
    )
    return with_reason(draw, "" if rows else "No model fits the filter.")


def best_so_far(read_model: ReadModel, query: BestSoFarQuery, now: float) -> Drawing:
    """Draw the best objective over models, time or trained epochs."""
    run = read_model.fit(query.fit)
    if run is None:
        return empty_drawing()
    table, request, began = read_model.table(run), run.fit_request, run.clock.first_start
    if query.axis == "model":
        values = partial(best_values, table.rows())
    else:
        values = partial(values_of_epochs, table.epoch_values(), query.axis, began)
    return with_reason(
        lambda: figures.best_so_far(
            values(),
            metric=request.metric,
            mode=request.mode,
            axis_unit=query.axis,
            is_log=query.log,
            theme=query.theme,
        ),
        "",
    )


def hypervolume(read_model: ReadModel, query: HypervolumeQuery, now: float) -> Drawing:
    """Draw the hypervolume over models, time or trained epochs."""
    run = read_model.fit(query.fit)
    if run is None:
        return empty_drawing()
    table, request, began = read_model.table(run), run.fit_request, run.clock.first_start
    rows = table.rows()
    if query.axis == "model":
        values = partial(best_values, rows)
    else:
        values = partial(values_of_epochs, table.epoch_values(), query.axis, began)
    return with_reason(
        lambda: figures.hypervolume(rows, request, values(), axis_unit=query.axis, theme=query.theme), ""
    )


def rungs(read_model: ReadModel, query: RungsFigureQuery, now: float) -> Drawing:
    """Draw the rungs of a search."""
    run = read_model.fit(query.fit)
    if run is None or run.search is None:
        return empty_drawing("This run has no search, so it has no rungs.")
    draw = partial(
        figures.rungs,
        read_model.rungs(run),
        metric=run.fit_request.metric,
        mode=run.fit_request.mode,
        is_log=query.log,
        theme=query.theme,
    )
    return with_reason(draw, "")


def importance(read_model: ReadModel, query: ModelsFigureQuery, now: float) -> Drawing:
    """Draw the importance of each hyperparameter for the objective."""
    run, rows = _select(read_model, query)
    if run is None:
        return empty_drawing()
    mode = run.fit_request.mode
    return with_reason(
        lambda: figures.importance(figures.importance_of(rows, mode=mode), theme=query.theme), ""
    )


def _drawing(
    read_model: ReadModel,
    query: ModelsFigureQuery,
    draw: Callable[[Run, Sequence[ModelSummary]], Callable[..., Figure] | None],
    *,
    why: str = "",
) -> Drawing:
    """Draw the selected models, or return an empty figure with the reason."""
    run, rows = _select(read_model, query)
    if run is None:
        return empty_drawing()
    request, drawn = run.fit_request, draw(run, rows)
    if drawn is None:
        return empty_drawing(why)
    if not rows:
        why = "No model fits the filter."
    elif all(row.best is None for row in rows):
        why = f"{request.metric!r} is known once a model has completed its first epoch."
    else:
        why = ""
    return with_reason(lambda: drawn(metric=request.metric, mode=request.mode, theme=query.theme), why)


def _select(read_model: ReadModel, query: ModelsFigureQuery) -> tuple[Run | None, list[ModelSummary]]:
    run = read_model.fit(query.fit)
    if run is None:
        return None, []
    rows, columns = read_model.table(run).rows(), read_model.columns(run)
    return run, matching(rows, ModelQuery(filter=query.filter), columns)


def _named(read_model: ReadModel, run: Run, names: str) -> tuple[str, ...]:
    """Return the named hyperparameters. Accepts names with the prefix ``hp.``.

    Raises:
        BadRequestError: the run lacks the hyperparameter; the message lists its names.
    """
    known = read_model.table(run).columns().hyperparameters
    wanted = dict.fromkeys(part.strip() for part in names.split(",") if part.strip())
    found = [name if name in known else name.removeprefix("hp.") for name in wanted]
    unknown = [name for name in found if name not in known]
    if unknown:
        raise BadRequestError(
            f"{run.id} has no hyperparameter {', '.join(unknown)}: there are {', '.join(known) or 'none'}"
        )
    return tuple(found)
