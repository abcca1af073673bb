"""Table of the read API's routes: parameters, answer and builder of each. No request is handled here.

`api.views` serves the table and generates the OpenAPI document from it. A builder runs under the read model's lock
and gets everything else in a `RouteInput`, so it cannot call the store. All routes are GET.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from cerebro.contract.base import Contract
from cerebro.contract.records import WorkerStatus
from cerebro.contract.rest import api
from cerebro.contract.rest.openapi import CSV, JSON, SVG, Operation
from cerebro.figures import Figure
from cerebro.state import QueuePosition
from dispatcher.analysis import figures
from dispatcher.api.gateway import PREFIX
from dispatcher.checkpoints import view as checkpoints
from dispatcher.cluster.view import ClusterView
from dispatcher.cluster.volumes import VolumesView
from dispatcher.compare.view import CompareFigureQuery
from dispatcher.curves import view as curves
from dispatcher.curves.figure import CurvesFigureQuery, StaticSvgQuery
from dispatcher.curves.figure import curves as curves_figure
from dispatcher.data import view as data
from dispatcher.data.figure import EtlFigureQuery
from dispatcher.data.figure import etl as etl_figure
from dispatcher.experiments import view as experiments
from dispatcher.history import view as history
from dispatcher.logs.log_reader import Chunk, Hits
from dispatcher.logs.view import LogQuery
from dispatcher.models import view as models
from dispatcher.models.query import ModelQuery
from dispatcher.overview import view as overview
from dispatcher.pages.drawing import Drawing
from dispatcher.ranking.view import RankingQuery, RankingView
from dispatcher.read_models.from_log import FromLog
from dispatcher.read_models.read_model import ReadModel
from dispatcher.rows.view import RowsQuery, RowsView
from dispatcher.rungs import view as rungs
from dispatcher.schedule import tasks
from dispatcher.schedule import view as schedule
from dispatcher.schedule.figure import ScheduleFigureQuery
from dispatcher.schedule.figure import schedule as schedule_figure
from dispatcher.tabs import header

VIEWS = f"{PREFIX}/views"
_ONE = "/experiments/{name}"


class NoQuery(Contract):
    """A route without parameters."""


class FitQuery(Contract):
    """`fit`: id of the fit run, by default the newest."""

    fit: str = Field("", max_length=60)


class CheckpointQuery(FitQuery):
    """Checkpoints of one model or all models, by page."""

    model: str = Field("", max_length=100)
    page: int = Field(1, ge=1, le=1_000_000)


class FailedRowsQuery(Contract):
    """One partition of a data set, by default of the experiment's newest data set."""

    dataset: str = Field("", max_length=100)
    split: str = Field(pattern="^(train|valid|test|predict)$")
    partition: int = Field(ge=0, le=1_000_000)


class LogsQuery(LogQuery):
    """Selection of logs. `after`: bytes of a single attempt's log that the client has."""

    after: int = Field(-1, ge=-1, le=api.MAX_SEQ)


class ClusterQuery(Contract):
    """Time span of histories, and page of workers."""

    span: str = Field("hour", pattern="^(hour|day)$")
    page: int = Field(1, ge=1, le=100_000)


@dataclass(frozen=True, kw_only=True)
class LogsView:
    """Ends of logs, or the matching lines of a search. `sub_epochs`: number of attempts that were considered."""

    chunks: tuple[Chunk, ...]
    found: Hits | None
    sub_epochs: int


@dataclass(frozen=True, kw_only=True)
class FigureView:
    """Figure for ``Plotly.newPlot(element, data, layout)``. ``layout.meta.empty`` says why `data` is empty."""

    data: list[dict[str, Any]]
    layout: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class RouteInput:
    """Input of a builder besides the read model.

    Attributes:
        model: id of the model in the path, or an empty text.
        now: seconds since the epoch.
        statuses: status of all workers, for routes with `uses_workers`.
    """

    query: Any
    model: str
    now: float
    statuses: tuple[WorkerStatus, ...]
    queue_positions: tuple[QueuePosition, ...] = ()
    """Queue positions of the experiment's open runs, for routes with `uses_workers`."""


Build = Callable[[ReadModel, RouteInput], object]
"""Builder of an answer; returns `None` if the experiment has no run of the kind `Route.needs`."""


@dataclass(frozen=True, kw_only=True)
class Route:
    """One address of the read API.

    Attributes:
        view: name of the endpoint. Without `build`, also the method of `dispatcher.api.views.Api` that answers.
        build: builds the answer from an experiment's read model.
        uses_workers: True if the answer also depends on the status of workers.
        needs: kind of run that must be planned.
    """

    view: str
    summary: str
    answer: Any
    query: type[Contract] = NoQuery
    kind: str = JSON
    build: Build | None = None
    uses_workers: bool = False
    needs: str = "fit"


FIGURES: dict[str, tuple[str, type[Contract], Callable[..., Drawing | FromLog[Figure]]]] = {
    "curves": ("Learning curves.", CurvesFigureQuery, curves_figure),
    "parallel": ("Parallel coordinates.", figures.ParallelQuery, figures.parallel),
    "scatter": ("The objective over hyperparameters.", figures.ScatterQuery, figures.scatter),
    "heatmap": ("The objective over two hyperparameters.", figures.HeatmapQuery, figures.heatmap),
    "contour": ("Contours of the objective over two hyperparameters.", figures.HeatmapQuery, figures.contour),
    "best_so_far": ("The best objective so far.", figures.BestSoFarQuery, figures.best_so_far),
    "pareto": ("Models over two objectives, with the Pareto front.", figures.ParetoQuery, figures.pareto),
    "hypervolume": (
        "How much of the objectives' ranges the models dominate.",
        figures.HypervolumeQuery,
        figures.hypervolume,
    ),
    "rungs": ("Rungs of a search.", figures.RungsFigureQuery, figures.rungs),
    "importance": ("Which hyperparameters matter.", figures.ModelsFigureQuery, figures.importance),
    "schedule": ("Gantt chart of workers.", ScheduleFigureQuery, schedule_figure),
    "etl": ("Progress of preprocessing.", EtlFigureQuery, etl_figure),
}
"""Figure name -> description, query type, drawing function."""

ROUTES: dict[str, Route] = {
    "/experiments": Route(
        view="experiments",
        summary="List of experiments, with search, filter, order and pages.",
        query=experiments.ListQuery,
        answer=experiments.ExperimentsView,
    ),
    _ONE: Route(
        view="experiment",
        summary="State of an experiment.",
        query=FitQuery,
        answer=header.Header,
        build=lambda read_model, inputs: header.header(
            read_model,
            now=inputs.now,
            fit=inputs.query.fit,
            statuses=inputs.statuses,
            queue_positions=inputs.queue_positions,
        ),
        uses_workers=True,
    ),
    f"{_ONE}/overview": Route(
        view="overview",
        summary="Summary of an experiment.",
        query=FitQuery,
        answer=overview.Overview,
        build=lambda read_model, inputs: overview.overview(
            read_model, now=inputs.now, fit=inputs.query.fit, statuses=inputs.statuses
        ),
        uses_workers=True,
    ),
    f"{_ONE}/models": Route(
        view="models",
        summary="Models of a fit run, with filter, order and pages.",
        query=ModelQuery,
        answer=models.ModelsView,
        build=lambda read_model, inputs: models.models(read_model, inputs.query),
    ),
    f"{_ONE}/models.csv": Route(
        view="models_csv",
        summary="All models that match the filter, as CSV; page and size have no effect.",
        query=ModelQuery,
        answer=str,
        kind=CSV,
    ),
    f"{_ONE}/models/{{model}}": Route(
        view="model",
        summary="One model of a fit run.",
        query=FitQuery,
        answer=models.ModelView,
        build=lambda read_model, inputs: models.model(read_model, inputs.model, fit=inputs.query.fit),
    ),
    f"{_ONE}/search": Route(
        view="search",
        summary="Search of a fit run: its rungs, the models on each, and the value at which each model stopped.",
        query=rungs.RungsQuery,
        answer=rungs.SearchView,
        build=lambda read_model, inputs: rungs.search_or_error(read_model, inputs.query),
    ),
    f"{_ONE}/ranking": Route(
        view="ranking",
        summary="Models of a test run that has ended, with intervals and ranks. The rows cannot separate models that "
        "share a rank. Models of different ranks may also be too close to call. 503: ask again in some seconds.",
        query=RankingQuery,
        answer=RankingView,
    ),
    f"{_ONE}/rows": Route(
        view="rows",
        summary="Rows of a test run that models get wrong, and rows where two models disagree. 503: ask again in "
        "some seconds.",
        query=RowsQuery,
        answer=RowsView,
    ),
    f"{_ONE}/curves": Route(
        view="curves",
        summary="Learning curves, reduced to the resolution of a screen.",
        query=curves.CurveQuery,
        answer=curves.CurvesView,
        build=lambda read_model, inputs: curves.curves(read_model, inputs.query),
    ),
    f"{_ONE}/schedule": Route(
        view="schedule",
        summary="Utilization and schedule of a fit run.",
        query=FitQuery,
        answer=schedule.ScheduleView,
        build=lambda read_model, inputs: schedule.schedule(read_model, fit=inputs.query.fit, now=inputs.now),
    ),
    f"{_ONE}/data": Route(
        view="data",
        summary="Progress of preprocessing.",
        answer=data.DataView,
        build=lambda read_model, inputs: data.data(read_model, now=inputs.now),
        needs="etl",
    ),
    f"{_ONE}/failed-rows": Route(
        view="failed_rows",
        summary="Rows that preprocessing skipped, with the reason.",
        query=FailedRowsQuery,
        answer=data.FailedRowsView,
    ),
    f"{_ONE}/sub_epochs": Route(
        view="sub_epochs",
        summary="Sub-epochs and their attempts, newest first; long runs by time range.",
        query=tasks.TaskQuery,
        answer=tasks.TasksView,
        build=lambda read_model, inputs: tasks.list_tasks(read_model, inputs.query, inputs.now),
    ),
    f"{_ONE}/logs": Route(view="logs", summary="Output of attempts.", query=LogsQuery, answer=LogsView),
    f"{_ONE}/checkpoints": Route(
        view="checkpoints",
        summary="Existing checkpoints.",
        query=CheckpointQuery,
        answer=checkpoints.CheckpointsView,
        build=lambda read_model, inputs: checkpoints.checkpoints(
            read_model, fit=inputs.query.fit, model=inputs.query.model, page=inputs.query.page
        ),
    ),
    f"{_ONE}/actions": Route(
        view="actions",
        summary="Commands of users, newest first.",
        query=history.CommandQuery,
        answer=history.CommandsView,
        build=lambda read_model, inputs: history.commands(read_model.state, inputs.query),
    ),
    **{
        f"{_ONE}/figures/{name}": Route(
            view=f"figure {name}", summary=summary, query=query, answer=FigureView
        )
        for name, (summary, query, _) in FIGURES.items()
    },
    f"{_ONE}/figures/curves.svg": Route(
        view="static_svg",
        summary="Learning curves as an SVG image, which works without scripts.",
        query=StaticSvgQuery,
        answer=str,
        kind=SVG,
    ),
    "/compare/curves": Route(
        view="compared_curves",
        summary="Learning curves of models of any experiments.",
        query=CompareFigureQuery,
        answer=FigureView,
    ),
    "/cluster": Route(
        view="cluster", summary="Workers, queue and history.", query=ClusterQuery, answer=ClusterView
    ),
    "/volumes": Route(view="volumes", summary="Disk use of the volumes.", answer=VolumesView),
}
"""Address below ``/api/views`` -> route."""


def operations() -> dict[str, Operation]:
    """Return the routes for the OpenAPI document."""
    found = {}
    for address, route in ROUTES.items():
        statuses = (200, 304, 400, 403, *((404, 409) if "{name}" in address else ()))
        found[f"GET {VIEWS}{address}"] = Operation(
            summary=route.summary,
            query=route.query,
            answer=route.answer,
            answer_kind=route.kind,
            statuses=statuses,
        )
    return found
