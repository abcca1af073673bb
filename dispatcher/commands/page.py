"""Routes of commands. Each command becomes events in the experiment's log, with its author.

The dispatcher only appends the events; the controller acts on them. `batch` and `model_forms.page` also use
`execute`. Commands that change hyperparameters or epochs have forms of their own in `dispatcher.model_forms`.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Mapping
from functools import partial

from flask import Blueprint, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from cerebro.commands.command import Command
from cerebro.commands.command_events import event_of_experiment, events_of
from cerebro.commands.rules import CONFIG_COMMANDS, OF_EXPERIMENT, OF_MODEL, CommandKind
from cerebro.contract.events import ClientEvent
from cerebro.errors import BadRequestError, ConflictError, UnreadableError
from cerebro.state import ExperimentState
from dispatcher.access.guard import author, local_path
from dispatcher.access.refusals import is_browser
from dispatcher.commands.deletion import deletion
from dispatcher.read_models.read_model import ReadModel
from dispatcher.services import Services
from dispatcher.tabs.tabs import Tabs

_log = logging.getLogger(__name__)

READING_S = 10.0
"""Maximum seconds to wait for a long log: a command is checked against the complete state."""
_MAX_QUOTED = 60
"""Maximum length of user input that a message repeats."""
_BUTTON_COMMANDS = tuple(
    kind
    for kind in CommandKind
    if kind not in CONFIG_COMMANDS or kind in (CommandKind.STOP_SEARCH, CommandKind.PRIORITIZE)
)
"""Commands that buttons send. Commands with a new training config have forms (`dispatcher.model_forms`)."""


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the routes."""
    services = tabs.services

    @pages.post("/experiments/<name:name>/actions")
    def act(name: str) -> ResponseReturnValue:
        command = parse_command(request.form, tuple(request.form.getlist("model")))
        try:
            execute(services, name, command, author())
        except ConflictError as error:
            if command.kind is CommandKind.DELETE and is_browser():
                return _confirmation_page(services, name, str(error), 409)
            raise
        target = (
            url_for("pages.experiments") if command.kind is CommandKind.DELETE else f"/experiments/{name}"
        )
        return redirect(local_path(request.form.get("next", ""), target), 303)

    @pages.post("/experiments/<name:name>/restore")
    def restore(name: str) -> ResponseReturnValue:
        services.reader.call(partial(services.store.restore, name), is_command=True)
        services.reader.invalidate(name)
        _log.info("command experiment=%s event=%s by=%s", name, "restore", author())
        return redirect(f"/experiments/{name}", 303)

    @pages.get("/experiments/<name:name>/delete")
    def delete(name: str) -> ResponseReturnValue:
        return _confirmation_page(services, name, "", 200)


def parse_command(
    fields: Mapping[str, str],
    models: tuple[str, ...] = (),
    *,
    known: Collection[CommandKind] = _BUTTON_COMMANDS,
) -> Command:
    """Return the command in a form. The form names its run, because the page showed a specific run.

    Args:
        known: commands that the page offers.

    Raises:
        BadRequestError: the command is unknown, or no model was selected.
    """
    name = fields.get("action", "")
    if name not in known:
        raise BadRequestError(
            f"the command {name[:_MAX_QUOTED]!r} is unknown; known commands: {', '.join(known)}"
        )
    if name in OF_MODEL and not models:
        raise BadRequestError("no model is selected: select one or more, then press the button again")
    return Command(
        kind=CommandKind(name),
        run=fields.get("run", "")[:_MAX_QUOTED],
        models=tuple(dict.fromkeys(model[:_MAX_QUOTED] for model in models)),
        scheduler=fields.get("scheduler", "")[:_MAX_QUOTED],
        planner=fields.get("planner", "") in ("1", "on", "true"),
        priority=fields.get("priority", "")[:_MAX_QUOTED],
        confirm=fields.get("confirm", "").strip(),
    )


def execute(services: Services, name: str, command: Command, by: str, *, once: str = "") -> tuple[int, ...]:
    """Check a command against the complete log, append its events, and return their sequence numbers.

    Nothing is appended if the state forbids the command for one of its models. Events are appended one by one: if the
    store stops answering in between, the first ones stay.

    Args:
        once: id of a form, so that a double click counts once.

    Raises:
        ConflictError: the state does not allow the command; the message says why.
        NotFoundError: the experiment does not exist.
        StoreUnavailableError: the store is away. The command may have taken effect; the page shows it.
    """
    reader = services.reader

    def build(read_model: ReadModel) -> object:
        if not read_model.is_complete:
            raise ConflictError(f"the log of {name} is long and is still being read: try again in a moment")
        return events_of(command, read_model.state, by=by)

    append = partial(services.store.append, name)
    try:
        events = reader.read_log(reader.record(name), build, timeout_s=READING_S)
    except UnreadableError:
        if command.kind not in OF_EXPERIMENT:
            raise
        events = (event_of_experiment(command, name, by=by),)
        append = partial(services.store.append, name, is_unread=True)
    assert isinstance(events, tuple)
    seqs = []
    for event in events:
        send = partial(append, event, once=_identity(once, event)) if once else partial(append, event)
        seqs.append(reader.call(send, is_command=True))
        _log.info("command experiment=%s event=%s by=%s", name, event.type, by)
    reader.invalidate(name)
    return tuple(seqs)


def _identity(once: str, event: ClientEvent) -> str:
    """Return an idempotency key for one event of a form. The same form with other values gets another key."""
    return hashlib.blake2b(f"{once} {event.model_dump_json()}".encode(), digest_size=16).hexdigest()


def _confirmation_page(services: Services, name: str, problem: str, status: int) -> ResponseReturnValue:
    reader = services.reader
    measured, _ = services.disks.newest()
    try:
        view = reader.read_log(
            reader.record(name), lambda found: deletion(found.state, measured), timeout_s=READING_S
        )
        is_readable = True
    except UnreadableError:
        view, is_readable = deletion(ExperimentState(name=name), measured), False
    page = render_template(
        "commands/delete.html", name=name, view=view, problem=problem, is_readable=is_readable
    )
    return page, status
