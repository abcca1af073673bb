"""The read API: JSON with everything that the pages show, below ``/api/views``.

`api.routes` has the table of routes; `app.create_app` calls `register`. Commands do not go through this API: programs
append events through `gateway`. Unknown parameters and invalid values are refused: a misspelt filter must not return
unfiltered data.
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
from cerebro.contract.base import Contract
from cerebro.contract.rest.openapi import CSV, JSON, SVG, document
from cerebro.figures import Figure, static_svg
from cerebro.figures.models import ModelSummary
from dispatcher.access.oidc import IdTokenError
from dispatcher.api import gateway
from dispatcher.api.gateway import problem
from dispatcher.api.routes import (
    FIGURES,
    ROUTES,
    VIEWS,
    Build,
    ClusterQuery,
    FailedRowsQuery,
    LogsQuery,
    LogsView,
    NoQuery,
    Route,
    RouteInput,
    operations,
)
from dispatcher.compare.view import (
    CompareFigureQuery,
    CompareQuery,
    compare,
    compare_figure,
    compared_version,
)
from dispatcher.curves.figure import StaticSvgQuery
from dispatcher.data.failed_rows import failed_rows
from dispatcher.data.view import newest_dataset
from dispatcher.experiments.view import ListQuery
from dispatcher.logs.view import Sources, sources
from dispatcher.models.query import ModelQuery
from dispatcher.models.view import models_csv
from dispatcher.ranking.outcomes import Outcome, Request
from dispatcher.ranking.view import RankingQuery, choose, view_of
from dispatcher.read_models.columns import Columns
from dispatcher.read_models.from_log import FromLog, resolve
from dispatcher.read_models.read_model import ReadModel
from dispatcher.rows.view import RowsQuery, choose_rows, rows_view
from dispatcher.sandbox.slots import BusyError, Slots
from dispatcher.services import Services

_EVERY = (401, 403, 429, 503)
"""Status codes of every route: missing token, missing rights, too many wrong tokens, store unavailable."""

_RANKING_WAIT_S, _RANKING_WAITS = 5.0, 2
"""Maximum wait for a new ranking, and number of requests that wait for one at once."""

T = TypeVar("T")
Query = TypeVar("Query", bound=Contract)


def register(app: Flask, services: Services) -> None:
    """Add the routes and the OpenAPI document."""
    blueprint, views = Blueprint("views", __name__), Api(services)
    blueprint.register_error_handler(ValidationError, _invalid_query)
    blueprint.register_error_handler(errors.CerebroError, _error_response)
    for address, route in ROUTES.items():
        rule = VIEWS + address.replace("{name}", "<name:name>").replace("{model}", "<model>")
        blueprint.add_url_rule(
            rule, route.view.replace(" ", "_"), views.view_function(address), methods=["GET"]
        )

    @blueprint.get("/openapi.json")
    def openapi() -> Response:
        return Response(openapi_document(), mimetype=JSON)

    app.register_blueprint(blueprint)


@cache
def openapi_document() -> str:
    """Return the OpenAPI document of the read API and the forwarded routes."""
    # Cached at the first request: it takes half a second. HTML pages are not part of the document.
    info = {
        "title": "Cerebro",
        "version": version("cerebro-platform"),
        "description": "Read what the page shows, and ask for runs. Times are seconds since the epoch.",
    }
    return document(info, {**operations(), **gateway.operations()}, _EVERY)


@cache
def _adapter(address: str) -> TypeAdapter[Any]:
    return TypeAdapter(ROUTES[address].answer)


class Api:
    """Request handlers. Routes with `Route.build` share one, the others have a method each. Safe for several
    threads.
    """

    def __init__(self, services: Services) -> None:
        self._services, self._reader = services, services.reader
        self._ranking_waits = Slots("rankings", at_once=_RANKING_WAITS, waiting=0)

    def view_function(self, address: str) -> Callable[..., Response]:
        """Return the Flask view of a route."""
        route = ROUTES[address]
        name, _, figure = route.view.partition(" ")

        def view(**parts: str) -> Response:
            g.address, g.figure = address, figure
            query = _parse_query(route.query)
            if route.build is not None:
                return self._answer_from_model(route, route.build, query, **parts)
            method: Callable[..., Response] = getattr(self, name)
            return method(query, **parts)

        return view

    def experiments(self, query: ListQuery) -> Response:
        """Answer the list of experiments."""
        catalogue = self._services.catalogue
        return self._tagged(catalogue.version, lambda: catalogue.view(query))

    def cluster(self, query: ClusterQuery) -> Response:
        """Answer workers, queue and history."""
        found = self._services.cluster.view(span=query.span, page=query.page)
        return Response(_json(found), mimetype=JSON)

    def volumes(self, _: NoQuery) -> Response:
        """Answer the disk use of the volumes."""
        return Response(_json(self._services.cluster.volumes()), mimetype=JSON)

    def models_csv(self, query: ModelQuery, name: str) -> Response:
        """Answer a run's models as CSV."""
        rows, columns = self._reader.read(name, lambda f: _table(_require_fit(f, query.fit), query.fit))
        # Release the experiment before the long table is written.
        response = Response(models_csv(rows, columns, query), mimetype=CSV)
        response.headers.set("Content-Disposition", "attachment", filename=f"{name}-models.csv")
        return response

    def failed_rows(self, query: FailedRowsQuery, name: str) -> Response:
        """Answer rows that preprocessing skipped."""
        dataset = self._reader.read(name, lambda f: _dataset(f, query.dataset))
        found = failed_rows(self._services.settings.volumes, dataset, query.split, query.partition)
        return Response(_json(found), mimetype=JSON)

    def logs(self, query: LogsQuery, name: str) -> Response:
        """Answer the output of attempts."""
        chosen = self._reader.read(name, lambda f: sources(f.state, query))
        return Response(_json(self._logs(name, query, chosen)), mimetype=JSON)

    def ranking(self, query: RankingQuery, name: str) -> Response:
        """Answer the ranking of a test run; waits some seconds if it is being computed.

        Raises:
            BusyError: it is not complete yet.
        """
        choice = self._reader.read(name, lambda f: choose(_require_fit(f, query.fit), query))
        found = self._outcome(choice.request, choice.created) if choice.request else None
        view = view_of(choice, found.ranking if found else None, found.reason if found else "", query.size)
        return Response(_json(view), mimetype=JSON)

    def rows(self, query: RowsQuery, name: str) -> Response:
        """Answer rows of a test run; waits some seconds if they are being selected.

        Raises:
            BusyError: they are not complete yet.
        """
        choice = self._reader.read(name, lambda f: choose_rows(_require_fit(f, query.fit), query))
        found = self._outcome(choice.request, choice.created) if choice.request else None
        return Response(_json(rows_view(choice, found)), mimetype=JSON)

    def _outcome(self, request: Request, created: float) -> Outcome:
        rankings = self._services.rankings
        found = rankings.find(request, created)
        if found is None:
            with self._ranking_waits.taken(wait_s=0):
                found = rankings.find(request, created, wait_s=_RANKING_WAIT_S)
        if found is None:
            raise BusyError("the tested models are being compared: ask again in some seconds")
        return found

    def figure(self, query: Contract, name: str) -> Response:
        """Answer a figure for Plotly."""
        return self._tagged(lambda: self._reader.version(name), lambda: self._draw(g.figure, query, name))

    def static_svg(self, query: StaticSvgQuery, name: str) -> Response:
        """Answer learning curves as SVG."""
        return self._services.answers.answer(
            lambda: self._reader.version(name),
            lambda: static_svg(self._draw("curves", query, name), theme=query.theme, height=query.height),
            mimetype=SVG,
        )

    def compared_curves(self, query: CompareFigureQuery) -> Response:
        """Answer the figure of compared models."""
        chosen = CompareQuery(pick=query.pick, metric=query.metric)
        return self._tagged(
            compared_version(self._reader, query.pick),
            lambda: compare_figure(compare(self._reader, chosen, axis=query.axis), query),
        )

    def _draw(self, figure: str, query: Contract, name: str) -> Figure:
        now, (_, _, draw) = self._reader.now(), FIGURES[figure]
        fit = getattr(query, "fit", "")
        found = self._reader.read(name, lambda f: draw(_require_fit(f, fit), query, now))
        return found.make(self._services.past) if isinstance(found, FromLog) else found()

    def _answer_from_model(
        self, route: Route, build: Build, query: Any, name: str, model: str = ""
    ) -> Response:
        reader = self._reader
        statuses = reader.workers() if route.uses_workers else ()
        queue_positions = reader.queue_positions(name) if route.uses_workers else ()
        route_input = RouteInput(
            query=query, model=model, now=reader.now(), statuses=statuses, queue_positions=queue_positions
        )

        def version() -> object:
            workers = (reader.workers.version(), reader.queue_positions(name)) if route.uses_workers else ()
            return reader.version(name), workers

        def answer(read_model: ReadModel) -> object:
            found = build(_require_fit(read_model, getattr(query, "fit", "")), route_input)
            return _require(found, read_model, route.needs)

        return self._tagged(version, lambda: resolve(reader.read(name, answer), self._services.past))

    def _tagged(self, version: Callable[[], object], build: Callable[[], object]) -> Response:
        return self._services.answers.answer(version, lambda: _json(build()), mimetype=JSON)

    def _logs(self, name: str, query: LogsQuery, chosen: Sources) -> LogsView:
        reader = self._services.logs
        if query.is_search:
            return LogsView(chunks=(), found=reader.search(name, chosen, query), sub_epochs=len(chosen))
        if query.after >= 0 and query.task and chosen:
            return LogsView(
                chunks=(reader.since(name, chosen[-1], query.after),), found=None, sub_epochs=len(chosen)
            )
        return LogsView(chunks=tuple(reader.newest(name, chosen)), found=None, sub_epochs=len(chosen))


def _parse_query(kind: type[Query]) -> Query:
    """Return the query of this request.

    Raises:
        ValidationError: a parameter is unknown or invalid.
        BadRequestError: a parameter occurs twice.
    """
    found = request.args.to_dict(flat=False)
    twice = [name for name, values in found.items() if len(values) > 1]
    if twice:
        raise errors.BadRequestError(
            f"{', '.join(twice)}: given more than once; separate several values by commas"
        )
    return kind.model_validate({name: values[0] for name, values in found.items()})


def _json(value: object) -> bytes:
    return to_json(value) if isinstance(value, dict) else _adapter(g.address).dump_json(value)


def _require_fit(read_model: ReadModel, fit: str) -> ReadModel:
    if fit and fit not in read_model.fits():
        raise errors.NotFoundError(f"{read_model.record.name!r} has no planned fit run {fit!r}")
    return read_model


def _require(found: T | None, read_model: ReadModel, kind: str) -> T:
    if found is None:
        raise errors.NotFoundError(f"{read_model.record.name!r} has no planned {kind} run yet")
    return found


def _table(read_model: ReadModel, fit: str) -> tuple[list[ModelSummary], Columns]:
    run = _require(read_model.fit(fit), read_model, "fit")
    return read_model.table(run).rows(), read_model.columns(run)


def _dataset(read_model: ReadModel, wanted: str) -> str:
    if wanted and wanted not in read_model.state.datasets:
        raise errors.NotFoundError(f"{read_model.record.name!r} has no data set {wanted!r}")
    return wanted or _require(newest_dataset(read_model), read_model, "etl").id


def _invalid_query(error: ValidationError) -> Response:
    problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5])
    return problem(400, "BadRequestError", f"{request.path}: {problems}")


def _error_response(error: errors.CerebroError) -> Response:
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 503)
    return problem(status, type(error).__name__, str(error))


_STATUS: dict[type[errors.CerebroError], int] = {
    IdTokenError: 401,
    errors.BadRequestError: 400,
    errors.ForbiddenError: 403,
    errors.NotFoundError: 404,
    errors.StoreUnavailableError: 503,
    errors.UnreadableError: 409,
    errors.IllegalEventError: 503,
    BusyError: 503,
}
"""Error -> status. Other errors mean that the store has another version, and answer 503."""
