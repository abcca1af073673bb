"""Route that changes tags and notes of experiments and models; the form is the macro `tag_editor`."""

from __future__ import annotations

import logging
from functools import partial

from flask import Blueprint, redirect, request
from flask.typing import ResponseReturnValue

from cerebro.commands.tags import tags_event
from cerebro.contract.events import TagsChanged
from cerebro.contract.tags import NOTE
from cerebro.errors import ConflictError
from dispatcher.access.guard import author, local_path
from dispatcher.commands.page import READING_S
from dispatcher.read_models.read_model import ReadModel
from dispatcher.tabs.tabs import Tabs

_log = logging.getLogger(__name__)


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the route."""
    services = tabs.services
    reader = services.reader

    @pages.post("/experiments/<name:name>/tags")
    def tags(name: str) -> ResponseReturnValue:
        fields = request.form
        key, value = fields.get("key", "").strip(), fields.get("value", "").replace("\r\n", "\n").strip()
        is_gone = "delete" in fields or (key == NOTE and not value)

        def build(read_model: ReadModel) -> TagsChanged:
            if not read_model.is_complete:
                raise ConflictError(
                    f"the log of {name} is long and is still being read: try again in a moment"
                )
            return tags_event(
                read_model.state,
                {key: None if is_gone else value},
                model=fields.get("model", ""),
                run=fields.get("run") or None,
                by=author(),
            )

        event = reader.read_log(reader.record(name), build, timeout_s=READING_S)
        reader.call(partial(services.store.append, name, event), is_command=True)
        _log.info("command experiment=%s event=%s by=%s", name, event.type, event.by)
        reader.invalidate(name)
        return redirect(local_path(fields.get("next", ""), f"/experiments/{name}"), 303)
