"""Routes of the model forms. A form shows the difference that it makes, and sends it after the user has seen it.

The script loads the difference while the user types; without scripts a button shows it. If the difference changed
since it was shown, the form shows it again instead of sending it. Each request computes the form from the newest log,
for which it waits up to 10 s.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from uuid import uuid4

from flask import Blueprint, g, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from cerebro.commands.command import Command
from cerebro.commands.command_events import outcomes
from cerebro.commands.rules import CommandKind
from cerebro.errors import (
    BadRequestError,
    CerebroError,
    ConflictError,
    PartlyDoneError,
    SearchSpaceError,
    StoreUnavailableError,
)
from cerebro.state import CommandRecord
from dispatcher.access.guard import author
from dispatcher.commands.page import READING_S, execute
from dispatcher.model_forms.form import KINDS, ModelForm
from dispatcher.model_forms.view import ModelFormView, model_form_view
from dispatcher.read_models.read_model import ReadModel
from dispatcher.services import Services
from dispatcher.tabs.tabs import Tabs

_RULE = f"/experiments/<name:name>/<any({', '.join(KINDS)}):what>"


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the routes."""
    services = tabs.services

    @pages.route(_RULE, methods=["GET", "POST"], endpoint="model_form")
    def page(name: str, what: str) -> ResponseReturnValue:
        sent: Mapping[str, str] = request.form if request.method == "POST" else request.args
        models = request.form.getlist("model") + request.args.getlist("model")
        form = ModelForm.parse(KINDS[what], sent, models)
        view = _view(services, name, form)
        if request.method == "GET":
            return _page(name, what, view)
        if not g.is_form_ours:
            return _page(
                name,
                what,
                view,
                400,
                "The form is older than your session, so it had no effect: send it again.",
            )
        if sent.get("step") != "send":
            return _page(name, what, view, 422 if view.problems or view.refusal else 200)
        if not view.is_ready:
            return _page(name, what, view, 422, "The form has errors, so it had no effect.")
        if form.difference != view.difference:
            note = "The difference has changed since it was shown, so the form had no effect: check it, then send it."
            return _page(name, what, view, 409, note)
        try:
            records = _send(services, name, view.command, form.once)
        except StoreUnavailableError as error:
            note = f"The store stopped answering: {error}. Check the history before you send the form again."
            return _page(name, what, view, 503, note)
        except PartlyDoneError as error:
            return _page(
                name, what, _view(services, name, form), 409, f"The command was partly executed: {error}."
            )
        except (ConflictError, BadRequestError, SearchSpaceError) as error:
            return _page(name, what, _view(services, name, form), 409, f"The command had no effect: {error}.")
        return redirect(_target(name, view, records), 303)


def _view(services: Services, name: str, form: ModelForm) -> ModelFormView:
    """Build the view from the newest state, or during an outage from the last known."""
    reader = services.reader

    def build(read_model: ReadModel) -> ModelFormView:
        return model_form_view(read_model.state, form)

    try:
        return reader.read_log(reader.record(name), build, timeout_s=READING_S)
    except StoreUnavailableError:
        return reader.read(name, build)


def _send(services: Services, name: str, command: Command, once: str) -> tuple[CommandRecord, ...]:
    """Append the command's events and return the known outcomes.

    Raises:
        ConflictError: the command is no longer possible, or came too late.
        StoreUnavailableError: the store is away. The command may have taken effect; the page shows it.
    """
    reader, by = services.reader, author()
    seqs = execute(services, name, command, by, once=once)

    def read_outcomes(read_model: ReadModel) -> tuple[CommandRecord, ...]:
        return outcomes(command, read_model.state, seqs, by=by)

    try:
        return reader.read_log(reader.record(name), read_outcomes, timeout_s=READING_S)
    except ConflictError:
        raise
    except CerebroError:
        return ()  # the command was accepted; the next page shows its outcome


def _target(name: str, view: ModelFormView, records: tuple[CommandRecord, ...]) -> str:
    """Return the page of the created or changed model, or the table for several."""
    added = [model for record in records for model in record.added]
    is_new = view.kind in (CommandKind.ADD_MODELS, CommandKind.CLONE_MODEL)
    models = added if is_new else list(view.models)
    to = partial(url_for, name=name, fit=view.run)
    return to("pages.model", model=models[0]) if len(models) == 1 else to("pages.models")


def _page(
    name: str, what: str, view: ModelFormView, status: int = 200, note: str = ""
) -> ResponseReturnValue:
    once = request.form.get("once", "")[:60] or uuid4().hex
    page = render_template(
        "model_forms/model_form.html", name=name, what=what, view=view, note=note, by=author(), once=once
    )
    return page, status
