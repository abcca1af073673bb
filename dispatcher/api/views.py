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
from cerebro.contract.base import Contract
from cerebro.contract.openapi import CSV, JSON, SVG, document
from cerebro.figures import Figure, static_svg
from cerebro.figures.models import ModelSummary
from dispatcher.access.oidc import IdTokenError
from dispatcher.api import gateway
from dispatcher.api.gateway import problem
from dispatcher.api.routes import (
    FIGURES,
    ROUTES,
    VIEWS,
    Asked,
    Build,
    ClusterQuery,
    FailedRowsQuery,
    LogsQuery,
    LogsView,
    NoQuery,
    Route,
    operations,
)
from dispatcher.curves.figure import StaticSvgQuery
from dispatcher.data.failed_rows import failed_rows
from dispatcher.data.view import newest_dataset
from dispatcher.experiments.view import ListQuery
from dispatcher.logs.view import Chosen, sources
from dispatcher.models.query import ModelQuery
from dispatcher.models.view import models_csv
from dispatcher.reading.columns import Columns
from dispatcher.reading.from_log import FromLog, made
from dispatcher.reading.read_model import ReadModel
from dispatcher.sandbox.slots import BusyError
from dispatcher.services import Services

_EVERY = (401, 403, 429, 503)
"""Any route may answer so: without the token, after too many wrong ones, while the store is away."""

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
    def openapi() -> Response:
        return Response(_document(), mimetype=JSON)

    app.register_blueprint(blueprint)


@cache
def _document() -> str:
    # At the first request: it takes half a second. Pages are not in it: they are for people.
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
    """Routes about an experiment are built alike, the others have a method each, by `Route.view`. Safe for several
    threads."""

    def __init__(self, services: Services) -> None:
        self._services, self._reader = services, services.reader

    def answering(self, address: str) -> Callable[..., Response]:
        """The Flask view of a route."""
        route = ROUTES[address]
        name, _, figure = route.view.partition(" ")

        def view(**parts: str) -> Response:
            g.address, g.figure = address, figure
            asked = _asked(route.query)
            if route.build is not None:
                return self._built(route, route.build, asked, **parts)
            method: Callable[..., Response] = getattr(self, name)
            return method(asked, **parts)

        return view

    def experiments(self, asked: ListQuery) -> Response:
        """The list of experiments."""
        catalogue = self._services.catalogue
        return self._tagged(catalogue.version, lambda: catalogue.view(asked))

    def cluster(self, asked: ClusterQuery) -> Response:
        """Workers, queue and history."""
        found = self._services.cluster.look(span=asked.span, page=asked.page)
        return Response(_json(found), mimetype=JSON)

    def volumes(self, _: NoQuery) -> Response:
        """What lies on the volumes."""
        return Response(_json(self._services.cluster.volumes()), mimetype=JSON)

    def models_csv(self, asked: ModelQuery, name: str) -> Response:
        """A run's models as CSV."""
        rows, columns = self._reader.look(name, lambda f: _table(_fitting(f, asked.fit), asked.fit))
        # Others look at the experiment while a long table is written.
        response = Response(models_csv(rows, columns, asked), mimetype=CSV)
        response.headers.set("Content-Disposition", "attachment", filename=f"{name}-models.csv")
        return response

    def failed_rows(self, asked: FailedRowsQuery, name: str) -> Response:
        """Rows that preprocessing left out."""
        dataset = self._reader.look(name, lambda f: _dataset(f, asked.dataset))
        found = failed_rows(self._services.settings.volumes, dataset, asked.split, asked.partition)
        return Response(_json(found), mimetype=JSON)

    def logs(self, asked: LogsQuery, name: str) -> Response:
        """What attempts printed."""
        chosen = self._reader.look(name, lambda f: sources(f.state, asked))
        return Response(_json(self._logs(name, asked, chosen)), mimetype=JSON)

    def figure(self, asked: Contract, name: str) -> Response:
        """A figure for Plotly."""
        return self._tagged(lambda: self._reader.version(name), lambda: self._drawn(g.figure, asked, name))

    def static_svg(self, asked: StaticSvgQuery, name: str) -> Response:
        """Learning curves as a picture."""
        return self._services.answers.answer(
            lambda: self._reader.version(name),
            lambda: static_svg(self._drawn("curves", asked, name), theme=asked.theme, height=asked.height),
            mimetype=SVG,
        )

    # --- mechanism -------------------------------------------------------------------------------

    def _drawn(self, figure: str, asked: Contract, name: str) -> Figure:
        now, (_, _, draw) = self._reader.now(), FIGURES[figure]
        fit = getattr(asked, "fit", "")
        found = self._reader.look(name, lambda f: draw(_fitting(f, fit), asked, now))
        return found.make(self._services.past) if isinstance(found, FromLog) else found()

    def _built(self, route: Route, build: Build, query: Any, name: str, model: str = "") -> Response:
        reader = self._reader
        statuses = reader.workers() if route.of_workers else ()
        queue_positions = reader.queue_positions(name) if route.of_workers else ()
        asked = Asked(
            query=query, model=model, now=reader.now(), statuses=statuses, queue_positions=queue_positions
        )

        def version() -> object:
            beside = (reader.workers.version(), reader.queue_positions(name)) if route.of_workers else ()
            return reader.version(name), beside

        def answer(read_model: ReadModel) -> object:
            found = build(_fitting(read_model, getattr(query, "fit", "")), asked)
            return _there(found, read_model, route.needs)

        return self._tagged(version, lambda: made(reader.look(name, answer), self._services.past))

    def _tagged(self, version: Callable[[], object], build: Callable[[], object]) -> Response:
        return self._services.answers.answer(version, lambda: _json(build()), mimetype=JSON)

    def _logs(self, name: str, asked: LogsQuery, chosen: Chosen) -> LogsView:
        reader = self._services.logs
        if asked.is_search:
            return LogsView(chunks=(), found=reader.search(name, chosen, asked), sub_epochs=len(chosen))
        if asked.after >= 0 and asked.task and chosen:
            return LogsView(
                chunks=(reader.since(name, chosen[-1], asked.after),), found=None, sub_epochs=len(chosen)
            )
        return LogsView(chunks=tuple(reader.newest(name, chosen)), found=None, sub_epochs=len(chosen))


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


def _fitting(read_model: ReadModel, fit: str) -> ReadModel:
    if fit and fit not in read_model.fits():
        raise errors.NotFoundError(f"{read_model.record.name!r} has no planned fit run {fit!r}")
    return read_model


def _there(found: T | None, read_model: ReadModel, kind: str) -> T:
    if found is None:
        raise errors.NotFoundError(f"{read_model.record.name!r} has no planned {kind} run yet")
    return found


def _table(read_model: ReadModel, fit: str) -> tuple[list[ModelSummary], Columns]:
    table = read_model.table(_there(read_model.fit(fit), read_model, "fit"))
    return table.rows(), table.columns()


def _dataset(read_model: ReadModel, wanted: str) -> str:
    if wanted and wanted not in read_model.state.datasets:
        raise errors.NotFoundError(f"{read_model.record.name!r} has no data set {wanted!r}")
    return wanted or _there(newest_dataset(read_model), read_model, "etl").id


def _refused(error: ValidationError) -> Response:
    told = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5])
    return problem(400, "BadRequestError", f"{request.path}: {told}")


def _failed(error: errors.CerebroError) -> Response:
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
"""Anything else that is raised on purpose has no place here: a store that answers with it is of another version."""
