"""A button that asks where the process of a sub-epoch is: the answer stands at the end of the attempt's log."""

from __future__ import annotations

from functools import partial

from flask import Blueprint, redirect, request, url_for
from flask.typing import ResponseReturnValue

from cerebro.errors import BadRequestError, ClusterError
from cerebro.runtime.asked_stacks import stacks_of
from dispatcher.sandbox.slots import BusyError, Slots
from dispatcher.tabs.tabs import Tabs

_AT_ONCE = 2
"""Threads that wait for workers' answers; pages need the others."""
_ANSWER_S = 5.0
_LONGEST = 200


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the route."""
    services, slots = tabs.services, Slots("questions to workers", at_once=_AT_ONCE)

    @pages.post("/experiments/<name:name>/stacks")
    def ask_stacks(name: str) -> ResponseReturnValue:
        task = request.form.get("task", "")
        if not 0 < len(task) <= _LONGEST:
            raise BadRequestError("the form names no sub-epoch")
        with slots.taken(wait_s=_ANSWER_S):
            try:
                ask = partial(stacks_of, services.store, name, task, within_s=_ANSWER_S)
                asked, _ = services.reader.ask(ask, is_command=True)
            except BusyError:
                raise
            except ClusterError as error:
                raise BusyError(str(error)) from error
        return redirect(url_for("pages.logs", name=name, task=task, attempt=asked.attempt), 303)
