"""The WSGI application: who is let in, which errors are answered how, and which view answers which request."""

from __future__ import annotations

import hmac
from collections.abc import Callable

from flask import Flask, Response, request
from pydantic import ValidationError
from werkzeug.exceptions import HTTPException

from cerebro import errors
from cerebro.contract import api
from cerebro.contract.routes import STORE
from kvs_api.settings import Settings
from kvs_api.store import Store
from kvs_api.views import Views

View = Callable[..., Response]

_STATUS: dict[type[errors.CerebroError], int] = {
    errors.BadRequestError: 400,
    errors.UnauthorizedError: 401,
    errors.NotFoundError: 404,
    errors.ConflictError: 409,
    errors.UnreadableError: 409,
    errors.StoreUnavailableError: 503,
}


def create_app(settings: Settings, store: Store) -> Flask:
    """The WSGI application; `store` is shared by all its threads."""
    app = Flask("kvs_api", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = settings.max_body_bytes
    expected = f"Bearer {settings.token}".encode()

    @app.before_request
    def authenticate() -> Response | None:
        if request.path in ("/health", "/live"):
            return None
        given = request.headers.get("Authorization", "").encode()
        if not hmac.compare_digest(given, expected):
            return _problem(
                errors.UnauthorizedError(
                    "wrong or missing bearer token: a local cluster keeps it in <home>/run/token; "
                    "elsewhere set CEREBRO_TOKEN"
                )
            )
        return None

    @app.errorhandler(errors.CerebroError)
    def on_error(error: errors.CerebroError) -> Response:
        return _problem(error)

    @app.errorhandler(ValidationError)
    def on_invalid(error: ValidationError) -> Response:
        found = errors.found_in(error.errors())
        return _problem(errors.BadRequestError(f"{request.method} {request.path}: {found}"))

    @app.errorhandler(HTTPException)
    def on_http(error: HTTPException) -> Response:
        status = error.code or 500
        # Our own mistake is not the caller's: it may try again, and must not take it for a refusal.
        name = "ServerError" if status >= 500 else "BadRequestError"
        answer = api.Problem(error=name, message=f"{request.method} {request.path}: {error.description}")
        return Response(answer.model_dump_json(), status, mimetype="application/json")

    views = Views(store)
    for key, operation in STORE.items():
        method, rule = key.replace("{", "<").replace("}", ">").split(" ", 1)
        view: View = getattr(views, operation.name)
        app.add_url_rule(rule, endpoint=key, view_func=view, methods=[method])
    return app


def _problem(error: errors.CerebroError) -> Response:
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 400)
    body = api.Problem(error=type(error).__name__, message=str(error))
    return Response(body.model_dump_json(), status, mimetype="application/json")
