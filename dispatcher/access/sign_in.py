"""Routes to sign in, sign out, and open TensorBoard, whose proxy checks a ticket (`cerebro.local.tensorboard`).

`app.create_app` calls `register`. `Guard` verifies tokens and writes the session cookie; this module has the forms
and their messages. It also writes sign-ins of users mode to the store's audit log. There are no passwords.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from urllib.parse import urlsplit

from flask import Flask, abort, g, make_response, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from cerebro.contract.accounts.identity import Scope
from cerebro.errors import ForbiddenError, StoreUnavailableError, UnauthorizedError
from cerebro.runtime.web import tickets
from dispatcher.access.guard import Guard, local_path, person
from dispatcher.access.identities import Known
from dispatcher.services import Services

_log = logging.getLogger(__name__)


def _verify(guard: Guard, token: str) -> tuple[Known | None, str]:
    """Return the user of a typed token (`None` without users mode), or an error message."""
    if guard.identities is None:
        wrong = "This is not the cluster's token. The connection works: check the token and try again."
        return None, "" if guard.is_token(token) else wrong
    try:
        known = guard.identities.from_token(token)
    except UnauthorizedError as error:
        return None, f"{str(error)[:1].upper()}{str(error)[1:]}."
    try:
        guard.identities.from_session(known.acts_for)
    except (UnauthorizedError, ForbiddenError):
        # The token is valid, so the store does not understand the header `ACTS_FOR`.
        return None, (
            "The token is valid, but kvs_api and this page have different versions: install the same version of both, "
            "then sign in again."
        )
    if known.principal.kind == "service" or not known.principal.may(Scope.READ):
        return (
            None,
            "This token cannot open pages: it is a service's token, or lacks the scope read. Use a token of yours.",
        )
    return known, ""


def register(app: Flask, services: Services, guard: Guard, forget_polls: Callable[[], None]) -> None:
    """Add the routes.

    Args:
        forget_polls: clears the cache of admitted polls, so that the next poll of each session is checked.
    """

    @app.route("/sign-in", methods=["GET", "POST"])
    def sign_in() -> ResponseReturnValue:
        target = local_path(request.values.get("next", ""), url_for("pages.experiments"))
        if g.identity:
            return redirect(target, 303)
        if request.method == "GET":
            return _page(target, "", 200)
        if not g.is_form_ours:
            return _page(
                target,
                "The sign-in form has expired, or the browser blocks cookies: allow cookies and send the form again.",
                400,
            )
        address = request.remote_addr or ""
        known, why = _verify(guard, request.form.get("token", "").strip())
        if why:
            # Never delay a valid token: behind a proxy, other people's wrong tokens would lock everybody out.
            wait_s = guard.limiter.failed(address)
            _log.warning("sign-in refused address=%s", address)
            if wait_s:
                advice = f"Too many wrong tokens came from this address: wait {math.ceil(wait_s)} s."
                return _page(target, f"{why} {advice}", 429, wait_s)
            return _page(target, why, 401)
        if known is None:
            guard.begin_session(request.form.get("name", ""))
        else:
            guard.begin_session(known.principal.name, known.acts_for)
            g.acts_for = known.acts_for
            services.store.note_audit(f"signed in by {known.token} from {address}")
        services.reader.probe()  # the next page then reports an unavailable store, instead of blaming the token
        return redirect(target, 303)

    @app.get("/tensorboard")
    def tensorboard() -> ResponseReturnValue:
        link = services.settings.links.tensorboard
        if link is None:
            abort(404)
        key = tickets.key_of(services.settings.token)
        ticket = tickets.issue(key, tickets.Kind.TICKET, services.clock())
        # Not a redirect: after the sign-in form, Content-Security-Policy (`form-action 'self'`) blocks redirects to
        # other origins.
        return render_template("access/tensorboard.html", onward=f"{link}/?{tickets.PARAMETER}={ticket}")

    @app.post("/sign-out")
    def sign_out() -> ResponseReturnValue:
        forget_polls()
        response: ResponseReturnValue
        try:
            guard.end_session()
        except StoreUnavailableError:
            why = (
                "You are signed out in this browser. The store does not answer, so copies of the session cookie "
                "stay valid: sign in and out again when the store answers."
            )
            response = _page(url_for("pages.experiments"), why, 503)
        else:
            response = redirect(url_for("sign_in"), 303)
        answer = make_response(response)
        if link := services.settings.links.tensorboard:
            # Browsers share cookies between ports. TensorBoard's proxy has set this one under the same host name.
            answer.delete_cookie(
                tickets.cookie_name(urlsplit(link).port), path="/", httponly=True, samesite="Lax"
            )
        return answer


def _page(target: str, problem: str, status: int, wait_s: float = 0.0) -> ResponseReturnValue:
    headers = {"Retry-After": str(math.ceil(wait_s))} if wait_s else {}
    name = person(request.form.get("name", ""))
    return render_template("access/sign_in.html", target=target, problem=problem, name=name), status, headers
