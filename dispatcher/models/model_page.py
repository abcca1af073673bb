"""Route of one model's page: curve, epochs, sub-epochs with all attempts, and commands.

Data comes from the event log; the last line of output comes from the logs volume, and sub-epochs of old epochs from
older pages of the log. The curve is loaded from the read API.
"""

from __future__ import annotations

from collections.abc import Mapping

from flask import Blueprint, Response, request

from dispatcher.logs import view as logs_view
from dispatcher.logs.log_reader import LogReader
from dispatcher.logs.view import LogQuery, Source, Sources
from dispatcher.models.view import ModelView
from dispatcher.models.view import model as model_view
from dispatcher.pages.addresses import figure_url
from dispatcher.pages.live_pages import live_route
from dispatcher.pages.queries import parsed_query
from dispatcher.read_models.from_log import resolve
from dispatcher.read_models.read_model import ReadModel
from dispatcher.schedule.tasks import TaskQuery, list_tasks
from dispatcher.tabs.header import Header
from dispatcher.tabs.tabs import Tabs, newest_command

_TASKS_PER_PAGE = 50
_MAX_LINE_LENGTH = 300
"""Maximum characters of the newest log line."""


def _with_parent(selected: ModelView) -> str:
    """Return the model's id, preceded by its parent if the curve continues the parent's."""
    summary, parent = selected.summary, selected.summary.parent
    return f"{parent.id},{summary.id}" if parent and parent.epoch is not None else summary.id


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the route."""

    @live_route(pages, "/experiments/<name:name>/models/<path:model>", "model")
    def page(name: str, model: str) -> Response:
        services, fit = tabs.services, request.args.get("fit", "")

        def running(read_model: ReadModel, fit: str) -> Sources:
            return logs_view.growing(read_model.state, LogQuery(fit=fit, model=model))

        def view(read_model: ReadModel, header: Header, now: float) -> tuple[Mapping[str, object], Sources]:
            selected = model_view(read_model, model, fit=header.fits.chosen)
            shown = {
                "view": selected,
                "model": selected.summary,
                "sub_epochs": list_tasks(
                    read_model,
                    parsed_query(TaskQuery, run=selected.run, model=model, size=_TASKS_PER_PAGE),
                    now,
                ),
                "figure": figure_url(
                    header.name, "curves", fit=selected.run, models=_with_parent(selected), top="0"
                ),
                "did": newest_command(read_model.state, selected.run, model),
            }
            return shown, running(read_model, selected.run)

        def finish(header: Header, selected: tuple[Mapping[str, object], Sources]) -> Mapping[str, object]:
            shown, open_logs = selected
            shown = {**shown, "sub_epochs": resolve(shown["sub_epochs"], services.past)}
            return {**shown, "output": _newest(services.logs, name, open_logs)}

        def sizes() -> list[object]:
            """Return sizes of open logs. The event log does not record output."""
            open_logs = services.reader.read(name, lambda read_model: running(read_model, fit))
            return [(source.key, services.logs.size(name, source)) for source in open_logs]

        return tabs.answer(
            name, "models", "models/model.html", view, finish, other_version=sizes, about=model
        )


def _newest(logs: LogReader, name: str, open_logs: Sources) -> tuple[Source, str] | None:
    """Return the newest log and its last nonblank line (empty without output); `None` without a log."""
    if not open_logs:
        return None
    lines = [line.text.strip() for chunk in logs.newest(name, open_logs[-1:]) for line in chunk.lines]
    last_line = next((line for line in reversed(lines) if line), "")
    return open_logs[-1], last_line[:_MAX_LINE_LENGTH]
