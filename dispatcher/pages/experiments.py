"""The list of experiments: searched, sorted and paged by the server; several stopped or archived at once."""

from __future__ import annotations

from flask import Blueprint, Response, redirect, request, url_for
from flask.typing import ResponseReturnValue

from cerebro.errors import ConflictError, NotFoundError
from cerebro.state import wording
from cerebro.steering import Action
from dispatcher.desk.acting import carry_out
from dispatcher.desk.wishes import Wish
from dispatcher.guard import local_path, who
from dispatcher.pages.addresses import is_fragment
from dispatcher.pages.asking import asked
from dispatcher.pages.rendering import live_route, render
from dispatcher.services import Services
from dispatcher.views.experiments import ExperimentRow, ListQuery

_MOST = 500
"""Experiments that one form may name."""


def register(pages: Blueprint, services: Services) -> None:
    """Add the routes."""

    @live_route(pages, "/experiments", "experiments")
    def experiments() -> Response:
        def build() -> str:
            view = services.catalogue.view(asked(ListQuery))
            running = sum(row.state == "running" for row in view.rows)
            title = f"{running} running · Experiments" if running else "Experiments"
            return render("experiments.html", title=title, is_live=view.is_running, view=view, may=may)

        if not is_fragment():
            return Response(build())
        return services.answers.answer(services.catalogue.version(), build)

    @pages.post("/experiments/actions")
    def batch() -> ResponseReturnValue:
        wish = Wish.parse(request.form, ())
        names = list(dict.fromkeys(request.form.getlist("name")))[:_MOST]
        if not names:
            raise ConflictError("no experiment was chosen: tick one or more, then press the button again")
        refusals = [refusal for name in names if (refusal := _refusal(services, name, wish.action))]
        if refusals:
            done = len(names) - len(refusals)
            raise ConflictError(f"{done} of {len(names)} done. {' '.join(refusals)}".rstrip("."))
        return redirect(local_path(request.form.get("next", ""), url_for("pages.experiments")), 303)


def may(row: ExperimentRow) -> tuple[Action, ...]:
    """What may be asked for of a row's experiment, together with others."""
    if row.is_deleting:
        return ()
    stop = (Action.STOP_RUN,) if row.state in wording.IN_PROGRESS and row.state != "stopping" else ()
    return (*stop, Action.UNARCHIVE if row.is_archived else Action.ARCHIVE)


def _refusal(services: Services, name: str, action: Action) -> str:
    """Carry an action out on one experiment; why not, if it was refused."""
    try:
        run = services.reader.look(name, lambda followed: followed.state.active_run())
        carry_out(services, name, Wish(action=action, run=run.id if run else ""), who())
    except (ConflictError, NotFoundError) as error:
        return f"{name}: {error}."
    return ""
