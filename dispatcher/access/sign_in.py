"""Routes to sign in, sign out, and open TensorBoard, whose proxy checks a ticket (`cerebro.local.tensorboard`).

People sign in with a token, or by a link with a one-time code (decision 90). The code is in the fragment of the
link's address, which browsers never send; `sign_in.js` puts it into the form. In users mode the page then names the
code's owner, and a second form uses the code up: a stranger's link must not sign anybody in as the stranger unnoticed.
`app.create_app` calls `register`.
`Guard` verifies tokens and writes the session cookie; this module has the forms and their messages. It also writes
sign-ins of users mode to the store's audit log. There are no passwords.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

from flask import Flask, abort, g, make_response, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from cerebro.contract.accounts.identity import Scope
from cerebro.errors import (
    ConflictError,
    ForbiddenError,
    NotFoundError,
    StoreUnavailableError,
    UnauthorizedError,
)
from cerebro.runtime.web import tickets
from dispatcher.access.guard import Guard, local_path, person
from dispatcher.access.identities import Known
from dispatcher.read_models.store import Store
from dispatcher.services import Services

_log = logging.getLogger(__name__)


_NEW_LINK = "Make a new one with the command cerebro open, or sign in with a token."


class _Attempt(NamedTuple):
    """Result of a sign-in attempt.

    Attributes:
        problem: error message; an empty text for a valid token or code.
        known: the user, in users mode.
        name: name for commands on the page, without users mode.
        means: token or link, for the audit log.
        code: code of a link that the user has to confirm first.
    """

    problem: str = ""
    known: Known | None = None
    name: str = ""
    means: str = ""
    code: str = ""


def _attempt(guard: Guard, store: Store, form: Mapping[str, str]) -> _Attempt:
    """Check the code or the token of a form."""
    if code := form.get("code", ""):
        is_preview = guard.identities is not None and not form.get("confirmed")
        found = _redeem(guard, store, code, is_preview=is_preview)
    else:
        found = _verify(guard, form.get("token", "").strip(), form.get("name", ""))
    who = found.known.principal if found.known else None
    if who and (who.kind == "service" or not who.may(Scope.READ)):
        return _Attempt(
            "This token cannot open pages: it is a service's token, or lacks the scope read. Use a token of yours."
        )
    return found


def _redeem(guard: Guard, store: Store, code: str, *, is_preview: bool) -> _Attempt:
    """Use up the one-time code of a sign-in link, unless for a preview."""
    try:
        owner = store.redeem_sign_in_code(code, is_preview=is_preview)
    except (NotFoundError, ConflictError) as error:
        return _Attempt(f"{_sentence(error)} {_NEW_LINK}")
    if bool(owner.acts_for) != (guard.identities is not None):
        # Else a user's link would open a session with the cluster's token.
        return _Attempt(
            "kvs_api and this page have different `auth.mode`: sign in again when both have restarted."
        )
    if guard.identities is None:
        return _Attempt(name=owner.name)
    try:
        known = guard.identities.from_session(owner.acts_for)
    except (UnauthorizedError, ForbiddenError) as error:
        return _Attempt(_sentence(error))
    return _Attempt(known=known, means=f"a link of {known.token}", code=code if is_preview else "")


def _verify(guard: Guard, token: str, name: str) -> _Attempt:
    """Check a typed token."""
    if guard.identities is None:
        wrong = "This is not the cluster's token. The connection works: check the token and try again."
        return _Attempt("" if guard.is_token(token) else wrong, name=name)
    try:
        known = guard.identities.from_token(token)
    except UnauthorizedError as error:
        return _Attempt(_sentence(error))
    try:
        guard.identities.from_session(known.acts_for)
    except (UnauthorizedError, ForbiddenError):
        # The token is valid, so the store does not understand the header `ACTS_FOR`.
        return _Attempt(
            "The token is valid, but kvs_api and this page have different versions: install the same version of both, "
            "then sign in again."
        )
    return _Attempt(known=known, means=known.token)


def _sentence(error: Exception) -> str:
    return f"{str(error)[:1].upper()}{str(error)[1:]}."


def register(app: Flask, services: Services, guard: Guard, forget_polls: Callable[[], None]) -> None:
    """Add the routes.

    Args:
        forget_polls: clears the cache of admitted polls, so that the next poll of each session is checked.
    """

    @app.route("/sign-in", methods=["GET", "POST"])
    def sign_in() -> ResponseReturnValue:
        target = local_path(request.values.get("next", ""), url_for("pages.experiments"))
        if g.identity:
            # With a fragment: without one, browsers would append a link's code to the target's address.
            return redirect(f"{target.partition('#')[0]}#main", 303)
        if request.method == "GET":
            return _page(target, "", 200)
        if not g.is_form_ours:
            return _page(
                target,
                "The sign-in form has expired, or the browser blocks cookies: allow cookies and send the form again.",
                400,
            )
        address = request.remote_addr or ""
        attempt = _attempt(guard, services.store, request.form)
        if attempt.problem:
            return _refused(guard, target, attempt.problem, address)
        if attempt.code and attempt.known:
            return _page(target, "", 200, attempt=attempt)
        if (known := attempt.known) is None:
            guard.begin_session(attempt.name)
        else:
            guard.begin_session(known.principal.name, known.acts_for)
            g.acts_for = known.acts_for
            services.store.note_audit(f"signed in by {attempt.means} from {address}")
        services.reader.probe()  # the next page then reports an unavailable store, instead of blaming the token
        return redirect(target, 303)

    @app.get("/tensorboard")
    def tensorboard() -> ResponseReturnValue:
        link = services.settings.links.tensorboard
        if link is None:
            abort(404)
        key = tickets.key_of(services.settings.token)
        ticket = tickets.issue(key, tickets.Kind.TICKET, services.clock())
        query = urlencode([*request.args.items(multi=True), (tickets.PARAMETER, ticket)])
        # Not a redirect: after the sign-in form, Content-Security-Policy (`form-action 'self'`) blocks redirects to
        # other origins.
        return render_template("access/tensorboard.html", onward=f"{link}/?{query}#timeseries")

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


def _refused(guard: Guard, target: str, why: str, address: str) -> ResponseReturnValue:
    # Never delay a valid token: behind a proxy, other people's wrong tokens would lock everybody out.
    wait_s = guard.limiter.failed(address)
    _log.warning("sign-in refused address=%s", address)
    if wait_s:
        advice = f"Too many wrong tokens came from this address: wait {math.ceil(wait_s)} s."
        return _page(target, f"{why} {advice}", 429, wait_s)
    return _page(target, why, 401)


def _page(
    target: str, problem: str, status: int, wait_s: float = 0.0, attempt: _Attempt | None = None
) -> ResponseReturnValue:
    """Return the form.

    Args:
        attempt: link to confirm.
    """
    headers = {"Retry-After": str(math.ceil(wait_s))} if wait_s else {}
    name = person(request.form.get("name", ""))
    page = render_template(
        "access/sign_in.html", target=target, problem=problem, name=name, link=attempt or _Attempt()
    )
    return page, status, headers
