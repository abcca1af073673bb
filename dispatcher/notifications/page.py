"""Routes of the page Notifications: list, add, test and remove targets, as ``cerebro notify`` does.

The store checks rights and hides addresses; the controller sends messages and reports results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from flask import Blueprint, Response, redirect, request, url_for
from flask.typing import ResponseReturnValue
from pydantic import ValidationError

from cerebro.contract.accounts.identity import Principal, Scope
from cerebro.contract.stored.notifications import (
    KINDS,
    NotificationTarget,
    TargetRequest,
    TargetStatus,
)
from cerebro.errors import BadRequestError, ConflictError, ForbiddenError
from dispatcher.access.guard import acts_for
from dispatcher.access.rights import principal
from dispatcher.pages.live_pages import live_route, render
from dispatcher.services import Services
from dispatcher.tabs.tabs import Tabs

_ALL = "*"
"""Value of the field ``runs`` for all runs and workers; other values are projects, an empty text is the default."""


@dataclass(frozen=True, kw_only=True)
class TargetRow:
    """A target in the table. `is_testing`: a requested test message has no result yet."""

    target: NotificationTarget
    status: TargetStatus
    is_testing: bool


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the routes."""
    services = tabs.services
    store = services.store

    @live_route(pages, "/notifications", "notifications")
    def page() -> Response:
        return Response(_page(services))

    @pages.post("/notifications")
    def add_notification() -> ResponseReturnValue:
        try:
            wanted = _target_request(request.form, request.form.getlist("event"))
            services.reader.call(partial(store.add_notification, wanted), is_command=True)
        except (BadRequestError, ForbiddenError, ConflictError) as error:
            status = 403 if isinstance(error, ForbiddenError) else 400
            return _page(services, problem=str(error)), status
        return redirect(url_for("pages.notifications"), 303)

    @pages.post("/notifications/<name:target>/test")
    def test_notification(target: str) -> ResponseReturnValue:
        services.reader.call(partial(store.test_notification, target), is_command=True)
        return redirect(url_for("pages.notifications"), 303)

    @pages.post("/notifications/<name:target>/remove")
    def remove_notification(target: str) -> ResponseReturnValue:
        services.reader.call(partial(store.remove_notification, target), is_command=True)
        return redirect(url_for("pages.notifications"), 303)


def _page(services: Services, problem: str = "") -> str:
    known = services.reader.call(partial(services.store.notifications, acts_for=acts_for()))
    who = principal()
    rows = [
        TargetRow(
            target=target,
            status=(status := known.statuses.get(target.id, TargetStatus())),
            is_testing=target.tested > status.tested,
        )
        for target in known.targets
    ]
    return render(
        "notifications/notifications.html",
        title="Notifications",
        is_live=any(row.is_testing for row in rows),
        rows=rows,
        who=who,
        projects=_projects(services, who),
        may_change=who is None or who.may(Scope.STEER),
        is_admin=who is None or who.may(Scope.ADMINISTER),
        events=KINDS,
        chosen=request.form.getlist("event") if problem else [kind.value for kind in KINDS],
        everything=_ALL,
        problem=problem,
    )


def _projects(services: Services, who: Principal | None) -> tuple[str, ...]:
    """Return the projects that the user may choose: an admin all, others their own."""
    if who is not None and not who.may(Scope.ADMINISTER):
        return who.projects
    known = [summary.experiment.project for summary in services.reader.summaries()]
    return tuple(sorted({*known, *(who.projects if who else ())} - {""}))


def _target_request(form: Mapping[str, str], events: list[str]) -> TargetRequest:
    """Return the request in a form.

    Raises:
        BadRequestError: a field is invalid. The message does not contain the address.
    """
    runs = form.get("runs", "").strip()
    fields = {
        "url": form.get("url", "").strip(),
        "events": events,
        "project": "" if runs == _ALL else runs,
        "covers_cluster": runs == _ALL,
    }
    try:
        return TargetRequest.model_validate(fields)
    except ValidationError as cause:
        first = cause.errors(include_input=False)[0]
        reason = first["msg"].removeprefix("Value error, ")
        raise BadRequestError(
            reason if first["loc"][0] == "url" else f"{first['loc'][0]}: {reason}"
        ) from None
