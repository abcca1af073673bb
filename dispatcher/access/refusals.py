"""Responses to unauthenticated requests: a redirect to the sign-in for browsers, JSON for programs.

`Guard` decides which requests to refuse and calls these functions. Error pages for all other errors are in
`dispatcher.pages.problems`, which shares `is_browser`.
"""

from __future__ import annotations

import math
from urllib.parse import quote

from flask import abort, g, redirect, request, url_for
from werkzeug.wrappers import Response as BaseResponse

from dispatcher.access.oidc import is_jwt
from dispatcher.api.gateway import problem


def is_browser() -> bool:
    """True if a browser opens a page. Browsers name HTML in `Accept`."""
    return "text/html" in request.headers.get("Accept", "") and g.get("identity") != "bearer"


def refused() -> BaseResponse:
    """Answer a request without identity: redirect a browser to the sign-in, refuse a program."""
    if not is_browser():
        return unauthorized()
    if request.method not in ("GET", "HEAD"):
        abort(401)  # the 401 page explains how to send the form again; a redirect would lose the typed values
    target = request.full_path.rstrip("?")
    return redirect(f"{url_for('sign_in')}?next={quote(target, safe='/')}", 303)


def unauthorized(why: str = "") -> BaseResponse:
    """Answer 401 to a program with a missing or wrong token. `why` is the store's reason, if known."""
    message = "sign in, or send the cluster's token as `Authorization: Bearer TOKEN`"
    header = request.headers.get("Authorization", "")
    if is_jwt(header.removeprefix("Bearer ").strip()):
        why = "an ID token opens pages alone: programs send a token of yours, which the page Account makes"
    if header.lower().startswith("bearer"):
        message = "the token that was sent is not this cluster's: check CEREBRO_TOKEN, or token=..."
    answer = problem(401, "UnauthorizedError", why or message)
    answer.headers["WWW-Authenticate"] = "Bearer"
    return answer


def too_many(wait_s: float) -> BaseResponse:
    """Answer 429 after too many wrong tokens."""
    left_s = math.ceil(wait_s)
    message = f"too many wrong tokens came from this address: try again in {left_s} s"
    answer = problem(429, "TooManyRequests", message)
    answer.headers["Retry-After"] = str(left_s)
    return answer
