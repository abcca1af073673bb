"""One model: its curve, epochs, sub-epochs with all attempts, what may be done with it; arrow keys lead to the next."""

from __future__ import annotations

from collections.abc import Mapping

from flask import Blueprint, Response, request

from dispatcher.logs import view as logs_view
from dispatcher.logs.reading import LogReader
from dispatcher.logs.view import Chosen, LogQuery, Source
from dispatcher.models.view import ModelView
from dispatcher.models.view import model as model_view
from dispatcher.pages.addresses import figure_url
from dispatcher.pages.query_parsing import parsed_query
from dispatcher.pages.rendering import live_route
from dispatcher.reading.from_log import made
from dispatcher.reading.read_model import ReadModel
from dispatcher.schedule.sub_epochs import SubEpochQuery, sub_epochs
from dispatcher.tabs.header import Header
from dispatcher.tabs.tabs import Tabs, newest_command

_SUB_EPOCHS = 50
_LONGEST_LINE = 300
"""Characters of the newest line of a log."""


def _with_parent(found: ModelView) -> str:
    """The model, and the one whose curve its own joins."""
    summary = found.summary
    return summary.id if summary.branch is None else f"{summary.parent},{summary.id}"


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the route."""

    @live_route(pages, "/experiments/<name:name>/models/<path:model>", "model")
    def page(name: str, model: str) -> Response:
        services, fit = tabs.services, request.args.get("fit", "")

        def running(read_model: ReadModel, fit: str) -> Chosen:
            return logs_view.growing(read_model.state, LogQuery(fit=fit, model=model))

        def view(read_model: ReadModel, header: Header, now: float) -> tuple[Mapping[str, object], Chosen]:
            found = model_view(read_model, model, fit=header.fit)
            shown = {
                "view": found,
                "model": found.summary,
                "sub_epochs": sub_epochs(
                    read_model, parsed_query(SubEpochQuery, run=found.run, model=model, size=_SUB_EPOCHS), now
                ),
                "figure": figure_url(
                    header.name, "curves", fit=found.run, models=_with_parent(found), top="0"
                ),
                "did": newest_command(read_model.state, found.run, model),
            }
            return shown, running(read_model, found.run)

        def finish(header: Header, found: tuple[Mapping[str, object], Chosen]) -> Mapping[str, object]:
            shown, open_logs = found
            shown = {**shown, "sub_epochs": made(shown["sub_epochs"], services.past)}
            return {**shown, "output": _newest(services.logs, name, open_logs)}

        def sizes() -> list[object]:
            """Of what is read beside the log of events, which says nothing when a line is printed."""
            open_logs = services.reader.look(name, lambda read_model: running(read_model, fit))
            return [(source.key, services.logs.size(name, source)) for source in open_logs]

        return tabs.answer(name, "models", "models/model.html", view, finish, beside=sizes)


def _newest(logs: LogReader, name: str, open_logs: Chosen) -> tuple[Source, str] | None:
    """Where the newest of these logs is from, and its last line that is not blank, empty before the first; `None` if
    there is no log."""
    if not open_logs:
        return None
    lines = [line.text.strip() for chunk in logs.newest(name, open_logs[-1:]) for line in chunk.lines]
    said = next((line for line in reversed(lines) if line), "")
    return open_logs[-1], said[:_LONGEST_LINE]
