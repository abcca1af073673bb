"""The forms about the terms of models: what is typed is shown as a difference, and sent once that was seen.

Without scripts a button shows the difference, and the page that it leads to has the button that sends it. The script
asks for the same page while somebody types. What is sent and is not what was shown is shown again: nobody sends a
difference unseen, nor one that others have made another one meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from uuid import uuid4

from flask import Blueprint, g, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from cerebro.commands.command import Command, outcomes
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
from dispatcher.access.guard import who
from dispatcher.commands.page import READING_S, carry_out
from dispatcher.reading.read_model import ReadModel
from dispatcher.services import Services
from dispatcher.tabs.tabs import Tabs
from dispatcher.terms.form import KINDS, TermsForm
from dispatcher.terms.view import TermsView, terms

_RULE = f"/experiments/<name:name>/<any({', '.join(KINDS)}):what>"


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the routes."""
    services = tabs.services

    @pages.route(_RULE, methods=["GET", "POST"], endpoint="terms")
    def page(name: str, what: str) -> ResponseReturnValue:
        sent: Mapping[str, str] = request.form if request.method == "POST" else request.args
        models = request.form.getlist("model") + request.args.getlist("model")
        form = TermsForm.parse(KINDS[what], sent, models)
        view = _view(services, name, form)
        if request.method == "GET":
            return _page(name, what, view)
        if not g.is_form_ours:
            return _page(name, what, view, 400, "This page was older than your session, so nothing was done.")
        if sent.get("step") != "send":
            return _page(name, what, view, 422 if view.problems or view.refusal else 200)
        if not view.is_ready:
            return _page(name, what, view, 422, "Nothing was done.")
        if form.seen != view.seen:
            note = (
                "Nothing was done yet: this is not the difference that was shown. Look at it, then send it."
            )
            return _page(name, what, view, 409, note)
        try:
            records = _send(services, name, view.command, form.once)
        except StoreUnavailableError as error:
            note = f"It is not known whether this was done: {error}. Look at the history before you send it again."
            return _page(name, what, view, 503, note)
        except PartlyDoneError as error:
            return _page(name, what, _view(services, name, form), 409, f"Not all of it was done: {error}.")
        except (ConflictError, BadRequestError, SearchSpaceError) as error:
            return _page(name, what, _view(services, name, form), 409, f"It had no effect: {error}.")
        return redirect(_target(name, view, records), 303)


def _view(services: Services, name: str, form: TermsForm) -> TermsView:
    """Of the newest state; while the store is away, of the last that was read."""
    reader = services.reader

    def build(read_model: ReadModel) -> TermsView:
        return terms(read_model.state, form)

    try:
        return reader.glance(reader.record(name), build, timeout_s=READING_S)
    except StoreUnavailableError:
        return reader.look(name, build)


def _send(services: Services, name: str, command: Command, once: str) -> tuple[CommandRecord, ...]:
    """Append it, and look what became of it; nothing if that is not known yet.

    Raises:
        ConflictError: it is not possible any more, or came too late.
        StoreUnavailableError: the store is away; whether it was done is to be seen on the page.
    """
    reader, by = services.reader, who()
    seqs = carry_out(services, name, command, by, once=once)

    def became(read_model: ReadModel) -> tuple[CommandRecord, ...]:
        return outcomes(command, read_model.state, seqs, by=by)

    try:
        return reader.glance(reader.record(name), became, timeout_s=READING_S)
    except ConflictError:
        raise
    except CerebroError:
        return ()  # it was taken; the page that follows says more


def _target(name: str, view: TermsView, records: tuple[CommandRecord, ...]) -> str:
    """The page of the model that was made or changed; of several, their table."""
    made = [model for record in records for model in record.added]
    is_new = view.kind in (CommandKind.ADD_MODELS, CommandKind.CLONE_MODEL)
    models = made if is_new else list(view.models)
    to = partial(url_for, name=name, fit=view.run)
    return to("pages.model", model=models[0]) if len(models) == 1 else to("pages.models")


def _page(name: str, what: str, view: TermsView, status: int = 200, note: str = "") -> ResponseReturnValue:
    once = request.form.get("once", "")[:60] or uuid4().hex
    page = render_template(
        "terms/terms.html", name=name, what=what, view=view, note=note, by=who(), once=once
    )
    return page, status
