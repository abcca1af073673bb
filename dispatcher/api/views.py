"""The read API: everything that the page shows, as JSON, below ``/api/views``.

`dispatcher.api.routes` has the table. A parameter that a route does not have, or a value that makes no sense, is
refused: a misspelt filter must not look like an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from typing import Any, TypeVar

from flask import Blueprint, Flask, Response, g, request
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from cerebro import errors
from cerebro.analysis.summary import ModelSummary
from cerebro.contract.base import Contract
from cerebro.figures import Figure, still
from dispatcher.api import openapi
from dispatcher.api.figures import StillQuery
from dispatcher.api.gateway import problem
from dispatcher.api.openapi import CSV
from dispatcher.api.routes import (
    FIGURES,
    ROUTES,
    VIEWS,
    CheckpointQuery,
    ClusterQuery,
    FailedRowsQuery,
    FitQuery,
    LogsQuery,
    LogsView,
    NoQuery,
    operations,
)
from dispatcher.checkpoints import view as checkpoints
from dispatcher.curves import view as curves
from dispatcher.data import view as data
from dispatcher.data.failed_rows import failed_rows
from dispatcher.experiments import view as experiments
from dispatcher.history import view as actions
from dispatcher.logs.view import Chosen, sources
from dispatcher.models import view as models
from dispatcher.models.query import ModelQuery
from dispatcher.overview import view as overview
from dispatcher.reading.columns import Columns
from dispatcher.reading.read_model import Followed
from dispatcher.sandbox.child import BusyError
from dispatcher.schedule import units
from dispatcher.schedule import view as schedule
from dispatcher.services import Services
from dispatcher.tabs import header

T = TypeVar("T")
Query = TypeVar("Query", bound=Contract)


def register(app: Flask, services: Services) -> None:
    """Add the routes and the document."""
    blueprint, views = Blueprint("views", __name__), Api(services)
    blueprint.register_error_handler(ValidationError, _refused)
    blueprint.register_error_handler(errors.CerebroError, _failed)
    for address, route in ROUTES.items():
        rule = VIEWS + address.replace("{name}", "<name:name>").replace("{model}", "<model>")
        blueprint.add_url_rule(rule, route.view.replace(" ", "_"), views.answering(address), methods=["GET"])

    @blueprint.get("/openapi.json")
    def document() -> Response:
        return Response(_document(), mimetype=openapi.JSON)

    app.register_blueprint(blueprint)


@cache
def _document() -> str:
    # At the first request: it takes half a second.
    return openapi.document(version("cerebro-platform"), operations())


@cache
def _adapter(address: str) -> TypeAdapter[Any]:
    return TypeAdapter(ROUTES[address].answer)


class Api:
    """A method per `Route.view`. Safe for several threads."""

    def __init__(self, services: Services) -> None:
        self._services, self._reader = services, services.reader

    def answering(self, address: str) -> Callable[..., Response]:
        """The Flask view of a route."""
        route = ROUTES[address]
        name, _, figure = route.view.partition(" ")
        method: Callable[..., Response] = getattr(self, name)

        def view(**parts: str) -> Response:
            g.address, g.figure = address, figure
            return method(_asked(route.query), **parts)

        return view

    # --- lists -----------------------------------------------------------------------------------

    def experiments(self, asked: experiments.ListQuery) -> Response:
        """See `ROUTES`."""
        catalogue = self._services.catalogue
        return self._tagged(catalogue.version, lambda: catalogue.view(asked))

    def cluster(self, asked: ClusterQuery) -> Response:
        """See `ROUTES`."""
        found = self._services.cluster.look(span=asked.span, page=asked.page)
        return Response(_json(found), mimetype=openapi.JSON)

    def volumes(self, _: NoQuery) -> Response:
        """See `ROUTES`."""
        return Response(_json(self._services.cluster.volumes()), mimetype=openapi.JSON)

    # --- an experiment ---------------------------------------------------------------------------

    def experiment(self, asked: FitQuery, name: str) -> Response:
        """See `ROUTES`."""
        statuses, now = self._reader.workers(), self._reader.now()
        return self._of(
            name,
            asked.fit,
            lambda f: header.header(f, now=now, fit=asked.fit, statuses=statuses),
            with_crew=True,
        )

    def overview(self, asked: FitQuery, name: str) -> Response:
        """See `ROUTES`."""
        statuses, now = self._reader.workers(), self._reader.now()
        return self._of(
            name,
            asked.fit,
            lambda f: overview.overview(f, now=now, fit=asked.fit, statuses=statuses),
            with_crew=True,
        )

    def models(self, asked: ModelQuery, name: str) -> Response:
        """See `ROUTES`."""
        return self._of(name, asked.fit, lambda f: _there(models.models(f, asked), f, "fit"))

    def models_csv(self, asked: ModelQuery, name: str) -> Response:
        """See `ROUTES`."""
        rows, columns = self._reader.look(name, lambda f: _table(_fitting(f, asked.fit), asked.fit))
        # Others look at the experiment while a long table is written.
        response = Response(models.models_csv(rows, columns, asked), mimetype=CSV)
        response.headers.set("Content-Disposition", "attachment", filename=f"{name}-models.csv")
        return response

    def model(self, asked: FitQuery, name: str, model: str) -> Response:
        """See `ROUTES`."""
        return self._of(name, asked.fit, lambda f: models.model(f, model, fit=asked.fit))

    def curves(self, asked: curves.CurveQuery, name: str) -> Response:
        """See `ROUTES`."""
        return self._of(name, asked.fit, lambda f: _there(curves.curves(f, asked), f, "fit"))

    def schedule(self, asked: FitQuery, name: str) -> Response:
        """See `ROUTES`."""
        now = self._reader.now()
        return self._of(
            name, asked.fit, lambda f: _there(schedule.schedule(f, fit=asked.fit, now=now), f, "fit")
        )

    def data(self, _: NoQuery, name: str) -> Response:
        """See `ROUTES`."""
        now = self._reader.now()
        return self._of(name, "", lambda f: _there(data.data(f, now=now), f, "etl"))

    def failed_rows(self, asked: FailedRowsQuery, name: str) -> Response:
        """See `ROUTES`."""
        dataset = self._reader.look(name, lambda f: _dataset(f, asked.dataset))
        found = failed_rows(self._services.settings.volumes, dataset, asked.split, asked.partition)
        return Response(_json(found), mimetype=openapi.JSON)

    def units(self, asked: units.UnitQuery, name: str) -> Response:
        """See `ROUTES`."""
        return self._of(name, "", lambda f: units.units(f.state, asked))

    def logs(self, asked: LogsQuery, name: str) -> Response:
        """See `ROUTES`."""
        chosen = self._reader.look(name, lambda f: sources(f.state, asked))
        return Response(_json(self._logs(name, asked, chosen)), mimetype=openapi.JSON)

    def checkpoints(self, asked: CheckpointQuery, name: str) -> Response:
        """See `ROUTES`."""
        return self._of(
            name,
            asked.fit,
            lambda f: checkpoints.checkpoints(f, fit=asked.fit, model=asked.model, page=asked.page),
        )

    def actions(self, asked: actions.ActionQuery, name: str) -> Response:
        """See `ROUTES`."""
        return self._of(name, "", lambda f: actions.actions(f.state, asked))

    def figure(self, asked: Contract, name: str) -> Response:
        """See `ROUTES`."""
        return self._tagged(lambda: self._reader.version(name), lambda: self._drawn(g.figure, asked, name))

    def still(self, asked: StillQuery, name: str) -> Response:
        """See `ROUTES`."""
        return self._services.answers.answer(
            lambda: self._reader.version(name),
            lambda: still(self._drawn("curves", asked, name), theme=asked.theme, height=asked.height),
            mimetype=openapi.SVG,
        )

    # --- mechanism -------------------------------------------------------------------------------

    def _drawn(self, figure: str, asked: Contract, name: str) -> Figure:
        now, (_, _, draw) = self._reader.now(), FIGURES[figure]
        fit = getattr(asked, "fit", "")
        return self._reader.look(name, lambda f: draw(_fitting(f, fit), asked, now))()

    def _of(
        self, name: str, fit: str, build: Callable[[Followed], object], *, with_crew: bool = False
    ) -> Response:
        def version() -> object:
            crew = self._reader.crew_version() if with_crew else 0
            return self._reader.version(name), crew

        return self._tagged(version, lambda: self._reader.look(name, lambda f: build(_fitting(f, fit))))

    def _tagged(self, version: Callable[[], object], build: Callable[[], object]) -> Response:
        return self._services.answers.answer(version, lambda: _json(build()), mimetype=openapi.JSON)

    def _logs(self, name: str, asked: LogsQuery, chosen: Chosen) -> LogsView:
        reader = self._services.logs
        if asked.is_search:
            return LogsView(chunks=(), found=reader.search(name, chosen, asked), units=len(chosen))
        if asked.after >= 0 and asked.task and chosen:
            return LogsView(
                chunks=(reader.since(name, chosen[-1], asked.after),), found=None, units=len(chosen)
            )
        return LogsView(chunks=tuple(reader.newest(name, chosen)), found=None, units=len(chosen))


def _asked(kind: type[Query]) -> Query:
    """The query of this request.

    Raises:
        ValidationError: a parameter is unknown or makes no sense.
        BadRequestError: one is there twice.
    """
    found = request.args.to_dict(flat=False)
    twice = [name for name, values in found.items() if len(values) > 1]
    if twice:
        raise errors.BadRequestError(
            f"{', '.join(twice)}: given more than once; put commas between several values"
        )
    return kind.model_validate({name: values[0] for name, values in found.items()})


def _json(value: object) -> bytes:
    return to_json(value) if isinstance(value, dict) else _adapter(g.address).dump_json(value)


def _fitting(followed: Followed, fit: str) -> Followed:
    if fit and fit not in followed.fits():
        raise errors.NotFoundError(f"{followed.record.name!r} has no planned fit run {fit!r}")
    return followed


def _there(found: T | None, followed: Followed, kind: str) -> T:
    if found is None:
        raise errors.NotFoundError(f"{followed.record.name!r} has no planned {kind} run yet")
    return found


def _table(followed: Followed, fit: str) -> tuple[list[ModelSummary], Columns]:
    table = followed.table(_there(followed.fit(fit), followed, "fit"))
    return table.rows(), table.columns()


def _dataset(followed: Followed, wanted: str) -> str:
    if wanted and wanted not in followed.state.datasets:
        raise errors.NotFoundError(f"{followed.record.name!r} has no data set {wanted!r}")
    return wanted or _there(data.newest_dataset(followed), followed, "etl").id


def _refused(error: ValidationError) -> Response:
    told = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5])
    return problem(400, "BadRequestError", f"{request.path}: {told}")


def _failed(error: errors.CerebroError) -> Response:
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 503)
    return problem(status, type(error).__name__, str(error))


_STATUS: dict[type[errors.CerebroError], int] = {
    errors.BadRequestError: 400,
    errors.NotFoundError: 404,
    errors.StoreUnavailableError: 503,
    errors.UnreadableError: 409,
    errors.IllegalEventError: 503,
    BusyError: 503,
}
"""Anything else that is raised on purpose has no place here: a store that answers with it is of another version."""
