"""What a page offers to who looks at it: nothing that the store would refuse them.

The store decides (`kvs_api`); this is so that nobody is shown a button in vain. Where there are no users, everybody is
offered everything.
"""

from __future__ import annotations

from contextlib import suppress

from flask import Flask, g, has_request_context, request

from cerebro.commands import rules
from cerebro.commands.rules import CommandKind
from cerebro.contract.identity import Owned, Principal, Scope
from cerebro.errors import CerebroError
from cerebro.state import ExperimentState, Model, Run
from dispatcher.reading.reader import Reader


def install(app: Flask, reader: Reader) -> None:
    """Find out, before each request about an experiment, whether who asks may steer it."""

    @app.before_request
    def look() -> None:
        who = principal()
        name = (request.view_args or {}).get("name")
        if who is None:
            return
        g.may_steer = who.may(Scope.CREATE)
        if isinstance(name, str):
            with suppress(CerebroError):  # the page itself says what is wrong
                g.may_steer = who.may_steer(reader.record(name))

    app.jinja_env.globals.update(may_steer=may_steer, may_create=may_create, principal=principal)


def principal() -> Principal | None:
    """Who asks; `None` where there are no users."""
    found: Principal | None = g.get("principal") if has_request_context() else None
    return found


def may_steer(owned: Owned | None = None) -> bool:
    """Whether who asks may give commands: to the experiment of this page, or to another one."""
    who = principal()
    if who is None:
        return True
    return who.may_steer(owned) if owned is not None else bool(g.get("may_steer", False))


def may_create() -> bool:
    """Whether who asks may make experiments."""
    who = principal()
    return who is None or who.may(Scope.CREATE)


def offered(
    state: ExperimentState, run: Run | None = None, model: Model | None = None
) -> frozenset[CommandKind]:
    """`cerebro.commands.rules.allowed`, of that what who asks may."""
    return rules.allowed(state, run, model) if may_steer() else frozenset()


def seen_as() -> str:
    """What a page's content depends on of who looks: those of whom it is the same may be sent the same."""
    who = principal()
    if who is None:
        return ""
    if isinstance((request.view_args or {}).get("name"), str):
        return f"steers={may_steer()}"
    return who.model_dump_json()
