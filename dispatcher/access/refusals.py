"""Answers to those who are not let in: a browser is led to the sign-in, a program told what to send."""

from __future__ import annotations

import math
from urllib.parse import quote

from flask import abort, g, redirect, request, url_for
from werkzeug.wrappers import Response as BaseResponse

from dispatcher.access.oidc import is_jwt
from dispatcher.api.gateway import problem


def is_browser() -> bool:
    """Whether a person looks at the answer: browsers ask for HTML by name when they open a page."""
    return "text/html" in request.headers.get("Accept", "") and g.get("identity") != "bearer"


def refused() -> BaseResponse:
    """Nobody has signed in: a browser is led to where one does."""
    if not is_browser():
        return unauthorized()
    if request.method not in ("GET", "HEAD"):
        abort(401)  # a page that says how to send the form again: a redirect would lose what was typed
    target = request.full_path.rstrip("?")
    return redirect(f"{url_for('sign_in')}?next={quote(target, safe='/')}", 303)


def unauthorized(why: str = "") -> BaseResponse:
    """A program has no token, or a wrong one; `why`, if the store has said."""
    message = "sign in, or send the cluster's token as `Authorization: Bearer TOKEN`"
    given = request.headers.get("Authorization", "")
    if is_jwt(given.removeprefix("Bearer ").strip()):
        why = "an ID token opens pages alone: programs send a token of yours, which the page Account makes"
    if given.lower().startswith("bearer"):
        message = "the token that was sent is not this cluster's: check CEREBRO_TOKEN, or token=..."
    answer = problem(401, "UnauthorizedError", why or message)
    answer.headers["WWW-Authenticate"] = "Bearer"
    return answer


def too_many(wait_s: float) -> BaseResponse:
    """Whoever guesses has to wait."""
    left_s = math.ceil(wait_s)
    message = f"too many wrong tokens came from this address: try again in {left_s} s"
    answer = problem(429, "TooManyRequests", message)
    answer.headers["Retry-After"] = str(left_s)
    return answer
