"""Controls that a page offers to the current user.

The store (`kvs_api`) enforces rights; this module only hides buttons that would fail. Views call `allowed_commands`,
templates `may_steer` and `may_create`, the response cache `rights_key`. Without users mode, everybody is offered
everything.
"""

from __future__ import annotations

from contextlib import suppress

from flask import Flask, g, has_request_context, request

from cerebro.commands import rules
from cerebro.commands.rules import CommandKind
from cerebro.contract.accounts.identity import Owned, Principal, Scope
from cerebro.errors import CerebroError
from cerebro.state import ExperimentState, Model, Run
from dispatcher.read_models.reader import Reader


def install(app: Flask, reader: Reader) -> None:
    """Before each request about an experiment, find out if the user may steer it."""

    @app.before_request
    def load_rights() -> None:
        who = principal()
        name = (request.view_args or {}).get("name")
        if who is None:
            return
        g.may_steer = who.may(Scope.CREATE)
        if isinstance(name, str):
            with suppress(CerebroError):  # the page itself reports the problem
                g.may_steer = who.may_steer(reader.record(name))

    app.jinja_env.globals.update(may_steer=may_steer, may_create=may_create, principal=principal)


def principal() -> Principal | None:
    """User of the current request; `None` without users mode."""
    found: Principal | None = g.get("principal") if has_request_context() else None
    return found


def may_steer(owned: Owned | None = None) -> bool:
    """True if the user may command an experiment: `owned`, or this page's."""
    who = principal()
    if who is None:
        return True
    return who.may_steer(owned) if owned is not None else bool(g.get("may_steer", False))


def may_create() -> bool:
    """True if the user may create experiments."""
    who = principal()
    return who is None or who.may(Scope.CREATE)


def allowed_commands(
    state: ExperimentState, run: Run | None = None, model: Model | None = None
) -> frozenset[CommandKind]:
    """Return the commands of `cerebro.commands.rules.allowed` that the current user may give."""
    return rules.allowed(state, run, model) if may_steer() else frozenset()


def rights_key() -> str:
    """Return a key of the user's rights. Users with equal keys may share a cached page."""
    who = principal()
    if who is None:
        return ""
    if isinstance((request.view_args or {}).get("name"), str):
        return f"steers={may_steer()}"
    return who.model_dump_json()
