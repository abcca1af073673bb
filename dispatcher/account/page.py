"""The page Account: show rights and quotas, create tokens (shown once), revoke them.

Only in users mode; without it the routes answer 404. The store creates, checks and stores tokens and quotas; this
module parses the form and keeps nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from flask import Blueprint, abort, g, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from pydantic import ValidationError

from cerebro.contract.accounts.identity import (
    DEFAULT_DAYS,
    MAX_DAYS,
    RANK,
    SCOPES,
    MadeToken,
    Principal,
    Scope,
    TokenRequest,
)
from cerebro.errors import BadRequestError, validation_summary
from dispatcher.access.rights import principal
from dispatcher.services import Services
from dispatcher.tabs.tabs import Tabs

_OFFERED_SCOPES = (Scope.READ, Scope.CREATE, Scope.STEER, Scope.TOKENS, Scope.CLUSTER, Scope.ADMINISTER)
"""Scopes that a token may be restricted to."""


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the routes."""
    services = tabs.services

    @pages.get("/account")
    def account() -> ResponseReturnValue:
        return _page(services, _current_user())

    @pages.post("/account/tokens")
    def make_token() -> ResponseReturnValue:
        who = _current_user()
        try:
            new_token = services.reader.call(
                partial(
                    services.store.make_token, _token_request(request.form, request.form.getlist("scope"))
                ),
                is_command=True,
            )
        except BadRequestError as error:
            return _page(services, who, problem=str(error)), 400
        return _page(services, who, new_token=new_token)

    @pages.post("/account/tokens/revoke")
    def revoke_token() -> ResponseReturnValue:
        _current_user()
        identity = request.form.get("token", "")[:100]
        services.reader.call(partial(services.store.revoke_token, identity), is_command=True)
        return redirect(url_for("pages.account"), 303)


def _current_user() -> Principal:
    """Return the current user. Answer 404 without users mode."""
    who = principal()
    if who is None:
        abort(404)
    return who


def _token_request(form: Mapping[str, str], scopes: list[str]) -> TokenRequest:
    """Return the token request in a form.

    Raises:
        BadRequestError: a field is invalid; the message names it.
    """
    fields: dict[str, object] = {"label": form.get("label", "").strip(), "days": form.get("days", "").strip()}
    if name := form.get("name", "").strip():
        fields["name"] = name
    if role := form.get("role", ""):
        fields["role"] = role
    if "projects" in form and (name or form["projects"].strip()):
        fields["projects"] = [each.strip() for each in form["projects"].split(",") if each.strip()]
    if scopes:
        fields["scopes"] = scopes
    try:
        return TokenRequest.model_validate(fields)
    except ValidationError as cause:
        raise BadRequestError(validation_summary(cause.errors())) from cause


def _page(
    services: Services, who: Principal, *, new_token: MadeToken | None = None, problem: str = ""
) -> str:
    is_admin = who.may(Scope.ADMINISTER)
    tokens = (
        services.reader.call(partial(services.store.tokens, acts_for=g.acts_for))
        if who.may(Scope.TOKENS)
        else ()
    )
    return render_template(
        "account/account.html",
        who=who,
        scopes=[scope for scope in _OFFERED_SCOPES if who.may(scope)],
        roles=RANK if is_admin else RANK[: RANK.index(who.role) + 1],
        role_scopes=SCOPES,
        tokens=tokens,
        usages=services.reader.call(services.store.quotas),
        new_token=new_token,
        problem=problem,
        is_admin=is_admin,
        may_make=who.may(Scope.TOKENS),
        default_days=DEFAULT_DAYS,
        max_days=MAX_DAYS,
    )
