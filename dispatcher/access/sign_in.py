"""Signing in and out, and on to TensorBoard, which asks who comes (`cerebro.local.tensorboard`)."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from urllib.parse import urlsplit

from flask import Flask, abort, g, make_response, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from cerebro.contract.identity import Scope
from cerebro.errors import ForbiddenError, StoreUnavailableError, UnauthorizedError
from cerebro.runtime import tickets
from dispatcher.access.guard import Guard, local_path, person
from dispatcher.access.identities import Known
from dispatcher.services import Services

_log = logging.getLogger(__name__)


def _proved(guard: Guard, given: str) -> tuple[Known | None, str]:
    """Who signs in by what was typed, where there are users; and why not, if not."""
    if guard.identities is None:
        wrong = "This is not the cluster's token. Nothing is wrong with the connection."
        return None, "" if guard.is_token(given) else wrong
    try:
        known = guard.identities.of_token(given)
    except UnauthorizedError as error:
        return None, f"{str(error)[:1].upper()}{str(error)[1:]}."
    try:
        guard.identities.of_session(known.acts_for)
    except (UnauthorizedError, ForbiddenError):
        # The token is right, so it is the word for it that the store does not know.
        return None, (
            "The token is right, but kvs_api is of another version than this page: upgrade both to the same one, "
            "then sign in again."
        )
    if known.principal.kind == "service" or not known.principal.may(Scope.READ):
        return None, "This token is not for people: it is a service's, or does not read."
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
                "This page was open for too long, or the browser keeps no cookies: send it again.",
                400,
            )
        address = request.remote_addr or ""
        known, why = _proved(guard, request.form.get("token", "").strip())
        if why:
            # Never delay a right token: behind a proxy, other people's wrong tokens would lock everybody out.
            wait_s = guard.limiter.failed(address)
            _log.warning("sign-in refused address=%s", address)
            if wait_s:
                left = f"Too many wrong tokens came from this address: wait {math.ceil(wait_s)} s."
                return _page(target, f"{why} {left}", 429, wait_s)
            return _page(target, why, 401)
        if known is None:
            guard.begin_session(request.form.get("name", ""))
        else:
            guard.begin_session(known.principal.name, known.acts_for)
            g.acts_for = known.acts_for
            services.store.note_audit(f"signed in by {known.token} from {address}")
        services.reader.probe()  # the next page then says if the store is away: not the token's fault
        return redirect(target, 303)

    @app.get("/tensorboard")
    def tensorboard() -> ResponseReturnValue:
        link = services.settings.link_tensorboard
        if link is None:
            abort(404)
        key = tickets.key_of(services.settings.token)
        ticket = tickets.issue(key, tickets.Kind.TICKET, services.clock())
        # A page that goes on by itself, not a redirect: a browser that comes here from the sign-in follows none to
        # another address, because forms of these pages are sent to these pages alone (Content-Security-Policy).
        return render_template("access/tensorboard.html", onward=f"{link}/?{tickets.PARAMETER}={ticket}")

    @app.post("/sign-out")
    def sign_out() -> ResponseReturnValue:
        forget_polls()
        left: ResponseReturnValue
        try:
            guard.end_session()
        except StoreUnavailableError:
            why = (
                "You are signed out in this browser. The store does not answer, so a copy of the session elsewhere is "
                "still valid: sign in and out again when it does."
            )
            left = _page(url_for("pages.experiments"), why, 503)
        else:
            left = redirect(url_for("sign_in"), 303)
        answer = make_response(left)
        if link := services.settings.link_tensorboard:
            # Cookies know no ports: this one was set by TensorBoard's guard, under the same host.
            answer.delete_cookie(
                tickets.cookie_name(urlsplit(link).port), path="/", httponly=True, samesite="Lax"
            )
        return answer


def _page(target: str, problem: str, status: int, wait_s: float = 0.0) -> ResponseReturnValue:
    headers = {"Retry-After": str(math.ceil(wait_s))} if wait_s else {}
    name = person(request.form.get("name", ""))
    return render_template("access/sign_in.html", target=target, problem=problem, name=name), status, headers
