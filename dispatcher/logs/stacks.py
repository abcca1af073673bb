"""Route that requests the thread stacks of a sub-epoch's process. They appear at the end of its log.

The store passes the request to the worker. Two requests are served at once, each for up to 5 s; four more wait for a
slot.
"""

from __future__ import annotations

from functools import partial

from flask import Blueprint, redirect, request, url_for
from flask.typing import ResponseReturnValue

from cerebro.errors import BadRequestError, ClusterError
from cerebro.runtime.kvs.stack_requests import stacks_of
from dispatcher.sandbox.slots import BusyError, Slots
from dispatcher.tabs.tabs import Tabs

_AT_ONCE = 2
"""Maximum number of threads that wait for workers' answers, so pages keep the others."""
_ANSWER_S = 5.0
_MAX_LENGTH = 200


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the route."""
    services, slots = tabs.services, Slots("requests to workers", at_once=_AT_ONCE)

    @pages.post("/experiments/<name:name>/stacks")
    def request_stacks(name: str) -> ResponseReturnValue:
        task = request.form.get("task", "")
        if not 0 < len(task) <= _MAX_LENGTH:
            raise BadRequestError(
                "the form names no task: open the logs of a task and press the button again"
            )
        with slots.taken(wait_s=_ANSWER_S):
            try:
                request_stacks = partial(stacks_of, services.store, name, task, within_s=_ANSWER_S)
                requested, _ = services.reader.call(request_stacks, is_command=True)
            except BusyError:
                raise
            except ClusterError as error:
                raise BusyError(str(error)) from error
        return redirect(url_for("pages.logs", name=name, task=task, attempt=requested.attempt), 303)
