"""The routes of the read API: what each takes, what it answers, and what makes that.

One table for the server and for the OpenAPI document.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from cerebro.contract import api
from cerebro.contract.base import Contract
from cerebro.contract.openapi import CSV, JSON, SVG, Operation
from cerebro.contract.records import WorkerStatus
from cerebro.figures import Figure
from cerebro.state import QueuePosition
from dispatcher.analysis import figures
from dispatcher.api.gateway import PREFIX
from dispatcher.checkpoints import view as checkpoints
from dispatcher.cluster.view import ClusterView
from dispatcher.cluster.volumes import VolumesView
from dispatcher.curves import view as curves
from dispatcher.curves.figure import CurvesFigureQuery, StaticSvgQuery
from dispatcher.curves.figure import curves as curves_figure
from dispatcher.data import view as data
from dispatcher.data.figure import EtlFigureQuery
from dispatcher.data.figure import etl as etl_figure
from dispatcher.experiments import view as experiments
from dispatcher.history import view as history
from dispatcher.logs.reading import Chunk, Hits
from dispatcher.logs.view import LogQuery
from dispatcher.models import view as models
from dispatcher.models.query import ModelQuery
from dispatcher.overview import view as overview
from dispatcher.pages.drawing import Drawing
from dispatcher.reading.from_log import FromLog
from dispatcher.reading.read_model import ReadModel
from dispatcher.rungs import view as rungs
from dispatcher.schedule import sub_epochs
from dispatcher.schedule import view as schedule
from dispatcher.schedule.figure import ScheduleFigureQuery
from dispatcher.schedule.figure import schedule as schedule_figure
from dispatcher.tabs import header

VIEWS = f"{PREFIX}/views"
_ONE = "/experiments/{name}"


class NoQuery(Contract):
    """A route without parameters."""


class FitQuery(Contract):
    """`fit`: id of the fit run; the newest one if empty."""

    fit: str = Field("", max_length=60)


class CheckpointQuery(FitQuery):
    """Of one model or of all, so many models at a time."""

    model: str = Field("", max_length=100)
    page: int = Field(1, ge=1, le=1_000_000)


class FailedRowsQuery(Contract):
    """Of one partition of a data set of the experiment; of the newest if none is named."""

    dataset: str = Field("", max_length=100)
    split: str = Field(pattern="^(train|valid|test|predict)$")
    partition: int = Field(ge=0, le=1_000_000)


class LogsQuery(LogQuery):
    """Which logs; `after`: bytes of the one attempt that were read already."""

    after: int = Field(-1, ge=-1, le=api.MAX_SEQ)


class ClusterQuery(Contract):
    """How far back histories go, and which page of workers."""

    span: str = Field("hour", pattern="^(hour|day)$")
    page: int = Field(1, ge=1, le=100_000)


@dataclass(frozen=True, kw_only=True)
class LogsView:
    """Ends of logs, or with a search the lines that were found. `sub_epochs`: attempts that were chosen from."""

    chunks: tuple[Chunk, ...]
    found: Hits | None
    sub_epochs: int


@dataclass(frozen=True, kw_only=True)
class FigureView:
    """Plotly's figure: ``Plotly.newPlot(element, data, layout)``. ``layout.meta.empty`` says why `data` is empty."""

    data: list[dict[str, Any]]
    layout: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request about an experiment: its parameters, and of `model` if one is in its path. `statuses` are those of all
    workers where `Route.of_workers` says so; `now` is in seconds since the epoch."""

    query: Any
    model: str
    now: float
    statuses: tuple[WorkerStatus, ...]
    queue_positions: tuple[QueuePosition, ...] = ()
    """Of the experiment's open runs, where `Route.of_workers` says so, too."""


Build = Callable[[ReadModel, Asked], object]
"""What a route about an experiment answers; `None` if there is no run of the kind that it `needs`."""


@dataclass(frozen=True, kw_only=True)
class Route:
    """One address: what it takes and what it answers.

    Attributes:
        view: name of the endpoint; without `build` the method of `dispatcher.api.views.Api` that answers.
        build: makes the answer of an experiment. of_workers: it also depends on what the workers do.
        needs: kind of the run that has to be planned.
    """

    view: str
    summary: str
    answer: Any
    query: type[Contract] = NoQuery
    kind: str = JSON
    build: Build | None = None
    of_workers: bool = False
    needs: str = "fit"


FIGURES: dict[str, tuple[str, type[Contract], Callable[..., Drawing | FromLog[Figure]]]] = {
    "curves": ("Learning curves.", CurvesFigureQuery, curves_figure),
    "parallel": ("Parallel coordinates.", figures.ParallelQuery, figures.parallel),
    "scatter": ("The objective over hyper-parameters.", figures.ScatterQuery, figures.scatter),
    "heatmap": ("The objective over two hyper-parameters.", figures.HeatmapQuery, figures.heatmap),
    "importance": ("Which hyper-parameters matter.", figures.ModelsFigureQuery, figures.importance),
    "schedule": ("What ran where when.", ScheduleFigureQuery, schedule_figure),
    "etl": ("How far preprocessing is.", EtlFigureQuery, etl_figure),
}
"""Name -> what it shows, what it takes, what draws it."""

ROUTES: dict[str, Route] = {
    "/experiments": Route(
        view="experiments",
        summary="Experiments: searched, filtered, ordered, paged.",
        query=experiments.ListQuery,
        answer=experiments.ExperimentsView,
    ),
    _ONE: Route(
        view="experiment",
        summary="What an experiment does.",
        query=FitQuery,
        answer=header.Header,
        build=lambda f, asked: header.header(
            f,
            now=asked.now,
            fit=asked.query.fit,
            statuses=asked.statuses,
            queue_positions=asked.queue_positions,
        ),
        of_workers=True,
    ),
    f"{_ONE}/overview": Route(
        view="overview",
        summary="An experiment at a glance.",
        query=FitQuery,
        answer=overview.Overview,
        build=lambda f, asked: overview.overview(
            f, now=asked.now, fit=asked.query.fit, statuses=asked.statuses
        ),
        of_workers=True,
    ),
    f"{_ONE}/models": Route(
        view="models",
        summary="Models of a fit run: filtered, ordered, paged.",
        query=ModelQuery,
        answer=models.ModelsView,
        build=lambda f, asked: models.models(f, asked.query),
    ),
    f"{_ONE}/models.csv": Route(
        view="models_csv",
        summary="All models that fit, as CSV; page and size have no effect.",
        query=ModelQuery,
        answer=str,
        kind=CSV,
    ),
    f"{_ONE}/models/{{model}}": Route(
        view="model",
        summary="One model of a fit run.",
        query=FitQuery,
        answer=models.ModelView,
        build=lambda f, asked: models.model(f, asked.model, fit=asked.query.fit),
    ),
    f"{_ONE}/search": Route(
        view="search",
        summary="A fit's search: its rungs, who is where, and who was stopped at which value.",
        query=rungs.RungsQuery,
        answer=rungs.SearchView,
        build=lambda f, asked: rungs.asked_search(f, asked.query),
    ),
    f"{_ONE}/curves": Route(
        view="curves",
        summary="Learning curves, cut to what a screen shows.",
        query=curves.CurveQuery,
        answer=curves.CurvesView,
        build=lambda f, asked: curves.curves(f, asked.query),
    ),
    f"{_ONE}/schedule": Route(
        view="schedule",
        summary="How well a fit run is scheduled.",
        query=FitQuery,
        answer=schedule.ScheduleView,
        build=lambda f, asked: schedule.schedule(f, fit=asked.query.fit, now=asked.now),
    ),
    f"{_ONE}/data": Route(
        view="data",
        summary="How far preprocessing is.",
        answer=data.DataView,
        build=lambda f, asked: data.data(f, now=asked.now),
        needs="etl",
    ),
    f"{_ONE}/failed-rows": Route(
        view="failed_rows",
        summary="Rows that preprocessing left out, and why.",
        query=FailedRowsQuery,
        answer=data.FailedRowsView,
    ),
    f"{_ONE}/sub_epochs": Route(
        view="sub_epochs",
        summary="Sub-epochs and their attempts, newest first; of long runs by stretches of time.",
        query=sub_epochs.SubEpochQuery,
        answer=sub_epochs.SubEpochsView,
        build=lambda f, asked: sub_epochs.sub_epochs(f, asked.query, asked.now),
    ),
    f"{_ONE}/logs": Route(view="logs", summary="What attempts printed.", query=LogsQuery, answer=LogsView),
    f"{_ONE}/checkpoints": Route(
        view="checkpoints",
        summary="Checkpoints that are kept.",
        query=CheckpointQuery,
        answer=checkpoints.CheckpointsView,
        build=lambda f, asked: checkpoints.checkpoints(
            f, fit=asked.query.fit, model=asked.query.model, page=asked.query.page
        ),
    ),
    f"{_ONE}/actions": Route(
        view="actions",
        summary="Who asked for what, newest first.",
        query=history.CommandQuery,
        answer=history.CommandsView,
        build=lambda f, asked: history.commands(f.state, asked.query),
    ),
    **{
        f"{_ONE}/figures/{name}": Route(
            view=f"figure {name}", summary=summary, query=query, answer=FigureView
        )
        for name, (summary, query, _) in FIGURES.items()
    },
    f"{_ONE}/figures/curves.svg": Route(
        view="static_svg",
        summary="Learning curves as a picture, which needs no scripts.",
        query=StaticSvgQuery,
        answer=str,
        kind=SVG,
    ),
    "/cluster": Route(
        view="cluster", summary="Workers, queue, history.", query=ClusterQuery, answer=ClusterView
    ),
    "/volumes": Route(view="volumes", summary="What lies on the volumes.", answer=VolumesView),
}
"""Address below ``/api/views`` -> what it is."""


def operations() -> dict[str, Operation]:
    """The routes as the OpenAPI document describes them."""
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
