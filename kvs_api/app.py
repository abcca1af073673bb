"""The WSGI application: who is let in, which errors are answered how, and which view answers which request."""

from __future__ import annotations

import time
from collections.abc import Callable

from flask import Flask, Response, g, request
from pydantic import ValidationError
from werkzeug.exceptions import HTTPException

from cerebro import errors
from cerebro.contract import api
from cerebro.contract.identity import ACTS_FOR, Scope
from cerebro.contract.routes import STORE
from kvs_api.access import FRESH_S, Access
from kvs_api.settings import Settings
from kvs_api.store import Store
from kvs_api.views import Views

View = Callable[..., Response]

_STATUS: dict[type[errors.CerebroError], int] = {
    errors.BadRequestError: 400,
    errors.UnauthorizedError: 401,
    errors.ForbiddenError: 403,
    errors.NotFoundError: 404,
    errors.ConflictError: 409,
    errors.UnreadableError: 409,
    errors.StoreUnavailableError: 503,
}


def create_app(settings: Settings, store: Store) -> Flask:
    """The WSGI application; `store` is shared by all its threads."""
    app = Flask("kvs_api", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = settings.max_body_bytes
    access = Access(settings, store)
    store.has_users = settings.has_users

    @app.before_request
    def authenticate() -> None:
        store.fence.set(_term())
        scope = scope_of(request.endpoint)
        if scope is Scope.OPEN:
            return
        token, acts_for = request.headers.get("Authorization", ""), request.headers.get(ACTS_FOR, "")
        g.principal = access.who(token, acts_for)
        g.checked = time.monotonic()
        # What is the dispatcher's to do is so for whomever it asks.
        who = access.who(token) if acts_for and scope is Scope.ACT else g.principal
        if who is not None and not who.may(scope):
            raise errors.ForbiddenError(who.lacks(scope))

    @app.after_request
    def check_again(response: Response) -> Response:
        """A read may have waited for half a minute: who has no token any more is given nothing."""
        if "checked" in g and time.monotonic() > g.checked + FRESH_S:
            try:
                access.still(g.principal)
            except errors.CerebroError as error:
                return _problem(error)
        return response

    @app.errorhandler(errors.CerebroError)
    def on_error(error: errors.CerebroError) -> Response:
        return _problem(error)

    @app.errorhandler(ValidationError)
    def on_invalid(error: ValidationError) -> Response:
        found = errors.validation_summary(error.errors())
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


def _term() -> int:
    text = request.headers.get(api.TERM, "0")
    if not (text.isascii() and text.isdecimal()):
        raise errors.BadRequestError(f"header {api.TERM}: expected a whole number, got {text!r}")
    return int(text)


def scope_of(endpoint: str | None) -> Scope:
    """What a caller needs. Whoever is known is told of no such route; one that says nothing is nobody's."""
    if endpoint is None:
        return Scope.KNOWN
    if endpoint in STORE:
        return STORE[endpoint].scope or Scope.NONE
    return Scope.READ if endpoint == "metrics" else Scope.NONE


def _problem(error: errors.CerebroError) -> Response:
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 400)
    body = api.Problem(error=type(error).__name__, message=str(error))
    return Response(body.model_dump_json(), status, mimetype="application/json")
