"""Routes of the list of experiments, and of commands on several experiments.

`Services.catalogue` supplies the rows. `commands.batch` executes the commands that the page offers (`OFFERED`).
"""

from __future__ import annotations

from flask import Blueprint, Response, redirect, request, url_for
from flask.typing import ResponseReturnValue

from cerebro.commands.rules import CommandKind
from cerebro.errors import ConflictError, PartlyDoneError
from cerebro.state.reports import state_words
from dispatcher.access.guard import author, local_path
from dispatcher.access.rights import may_steer
from dispatcher.commands.batch import execute_all
from dispatcher.commands.page import parse_command
from dispatcher.experiments.view import ExperimentRow, ListQuery
from dispatcher.pages.addresses import is_fragment
from dispatcher.pages.live_pages import live_route, render
from dispatcher.pages.queries import parsed_query
from dispatcher.tabs.tabs import Tabs

OFFERED = (CommandKind.STOP_RUN, CommandKind.ARCHIVE, CommandKind.UNARCHIVE)
"""Commands on several experiments."""


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the routes."""
    services = tabs.services

    @live_route(pages, "/experiments", "experiments")
    def experiments() -> Response:
        def build() -> str:
            view = services.catalogue.view(parsed_query(ListQuery))
            running = sum(row.state == "running" for row in view.rows)
            title = f"{running} running · Experiments" if running else "Experiments"
            return render(
                "experiments/experiments.html", title=title, is_live=view.is_running, view=view, may=may
            )

        if not is_fragment():
            return Response(build())
        return services.answers.answer(services.catalogue.version, build)

    @pages.post("/experiments/actions")
    def batch() -> ResponseReturnValue:
        action = parse_command(request.form, known=OFFERED).kind
        names = list(dict.fromkeys(request.form.getlist("name")))
        if not names:
            raise ConflictError("no experiment is selected: select one or more, then press the button again")
        found = execute_all(services, names, action, author())
        if not found.is_complete:
            raise PartlyDoneError(found.to_text())
        return redirect(local_path(request.form.get("next", ""), url_for("pages.experiments")), 303)


def may(row: ExperimentRow) -> tuple[CommandKind, ...]:
    """Return the commands that a user may give to a row's experiment together with others."""
    if row.is_deleting or not may_steer(row):
        return ()
    stop = (CommandKind.STOP_RUN,) if row.state in state_words.IN_PROGRESS and row.state != "stopping" else ()
    return (*stop, CommandKind.UNARCHIVE if row.is_archived else CommandKind.ARCHIVE)
