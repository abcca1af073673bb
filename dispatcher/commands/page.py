"""What users ask for on a page: each command is an event in an experiment's log, with who asked."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from functools import partial

from flask import Blueprint, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from cerebro.commands.command import Command, event_of_experiment, events_of
from cerebro.commands.rules import NEW_TERMS, OF_EXPERIMENT, OF_MODEL, CommandKind
from cerebro.contract.events import ClientEvent
from cerebro.errors import BadRequestError, ConflictError, UnreadableError
from cerebro.state import ExperimentState
from dispatcher.access.guard import local_path, who
from dispatcher.access.refusals import is_browser
from dispatcher.commands.deletion import deletion
from dispatcher.reading.read_model import ReadModel
from dispatcher.services import Services
from dispatcher.tabs.tabs import Tabs

_log = logging.getLogger(__name__)

READING_S = 10.0
"""How long a command may wait for a long log to be read: it is judged by all that has happened."""
_QUOTED = 60
"""Characters of what was sent that a message repeats."""
_OFFERED = tuple(
    kind
    for kind in CommandKind
    if kind not in NEW_TERMS or kind in (CommandKind.STOP_SEARCH, CommandKind.PRIORITIZE)
)
"""What a button can ask for: new terms of models have forms (`dispatcher.terms`)."""


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the routes."""
    services = tabs.services

    @pages.post("/experiments/<name:name>/actions")
    def act(name: str) -> ResponseReturnValue:
        command = parsed(request.form, tuple(request.form.getlist("model")))
        try:
            carry_out(services, name, command, who())
        except ConflictError as error:
            if command.kind is CommandKind.DELETE and is_browser():
                return _deletion(services, name, str(error), 409)
            raise
        gone = url_for("pages.experiments") if command.kind is CommandKind.DELETE else f"/experiments/{name}"
        return redirect(local_path(request.form.get("next", ""), gone), 303)

    @pages.post("/experiments/<name:name>/restore")
    def restore(name: str) -> ResponseReturnValue:
        services.reader.ask(partial(services.store.restore, name), is_command=True)
        services.reader.expect_news(name)
        _log.info("command experiment=%s event=%s by=%s", name, "restore", who())
        return redirect(f"/experiments/{name}", 303)

    @pages.get("/experiments/<name:name>/delete")
    def delete(name: str) -> ResponseReturnValue:
        return _deletion(services, name, "", 200)


def parsed(fields: Mapping[str, str], models: tuple[str, ...] = ()) -> Command:
    """The command that a browser sent. It names its run, for the page that it comes from showed one.

    Raises:
        BadRequestError: there is no such command, or no model was chosen.
    """
    name = fields.get("action", "")
    if name not in _OFFERED:
        raise BadRequestError(f"there is no command {name[:_QUOTED]!r} here; there are {', '.join(_OFFERED)}")
    if name in OF_MODEL and not models:
        raise BadRequestError("no model was chosen: tick one or more, then press the button again")
    return Command(
        kind=CommandKind(name),
        run=fields.get("run", "")[:_QUOTED],
        models=tuple(dict.fromkeys(model[:_QUOTED] for model in models)),
        scheduler=fields.get("scheduler", "")[:_QUOTED],
        planner=fields.get("planner", "") in ("1", "on", "true"),
        priority=fields.get("priority", "")[:_QUOTED],
        confirm=fields.get("confirm", "").strip(),
    )


def carry_out(services: Services, name: str, command: Command, by: str, *, once: str = "") -> tuple[int, ...]:
    """Append the events of a command, all or, where the state does not allow one of them, none; their numbers.

    Args:
        once: of a form: what is sent twice with the same one, as by a doubled click, counts once.

    Raises:
        ConflictError: the state does not allow it; says why.
        NotFoundError: there is no such experiment.
        StoreUnavailableError: the store is away; whether it was done is to be seen on the page.
    """
    reader = services.reader

    def build(read_model: ReadModel) -> object:
        if not read_model.is_complete:
            raise ConflictError(f"the log of {name} is long and is still being read: try again in a moment")
        return events_of(command, read_model.state, by=by)

    append = partial(services.store.append, name)
    try:
        events = reader.glance(reader.record(name), build, timeout_s=READING_S)
    except UnreadableError:
        if command.kind not in OF_EXPERIMENT:
            raise
        events = (event_of_experiment(command, name, by=by),)
        append = partial(services.store.append, name, is_unread=True)
    assert isinstance(events, tuple)
    seqs = []
    for event in events:
        send = partial(append, event, once=_identity(once, event)) if once else partial(append, event)
        seqs.append(reader.ask(send, is_command=True))
        _log.info("command experiment=%s event=%s by=%s", name, event.type, by)
    reader.expect_news(name)
    return tuple(seqs)


def _identity(once: str, event: ClientEvent) -> str:
    """Of one event of a form: what is typed differently into the same form is another one."""
    return hashlib.blake2b(f"{once} {event.model_dump_json()}".encode(), digest_size=16).hexdigest()


def _deletion(services: Services, name: str, problem: str, status: int) -> ResponseReturnValue:
    reader = services.reader
    measured, _ = services.disks.newest()
    try:
        view = reader.glance(
            reader.record(name), lambda found: deletion(found.state, measured), timeout_s=READING_S
        )
        is_readable = True
    except UnreadableError:
        view, is_readable = deletion(ExperimentState(name=name), measured), False
    page = render_template(
        "commands/delete.html", name=name, view=view, problem=problem, is_readable=is_readable
    )
    return page, status
