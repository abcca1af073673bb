"""Route of the tab Models, with the comparison of selected models.

The tabs Analysis and Curves use `table` and `picked_models`, too. An invalid filter shows all models and the error.
"""

from __future__ import annotations

from collections.abc import Mapping

from flask import Blueprint, Response, request

from cerebro.commands.rules import OF_MODEL, CommandKind
from cerebro.errors import BadRequestError
from cerebro.figures import ModelSummary
from dispatcher.access.rights import allowed_commands
from dispatcher.models.comparison import MAX_MODELS, comparison
from dispatcher.models.query import ModelQuery
from dispatcher.models.view import ModelsView, matching_ids, models
from dispatcher.pages.addresses import api_url
from dispatcher.pages.live_pages import live_route
from dispatcher.pages.queries import parsed_query
from dispatcher.read_models.model_table import ModelTable
from dispatcher.read_models.read_model import ReadModel
from dispatcher.tabs.header import Header
from dispatcher.tabs.tabs import Tabs

_ROWS = 50
MAX_PICKED = 500
"""Maximum number of models that one command of the table concerns."""
_ALL, _EXCEPT = "*", "-"
"""``*,-m03`` selects all models that match the filter except m03, at most `MAX_PICKED`, in the table's order."""


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the route."""

    @live_route(pages, "/experiments/<name:name>/models", "models")
    def page(name: str) -> Response:
        return tabs.answer(name, "models", "models/models.html", _fill)


def table(read_model: ReadModel, query: ModelQuery) -> tuple[ModelsView | None, str]:
    """Return the selected models and an empty text. For an invalid query, return all models and the error message."""
    try:
        return models(read_model, query), ""
    except BadRequestError as error:
        return models(read_model, ModelQuery(fit=query.fit, page=query.page, size=query.size)), str(error)


def picked_models(max_models: int = MAX_MODELS) -> tuple[str, ...]:
    """Return the ids of at most `max_models` selected models: ``pick=m01,m02`` or repeated."""
    names = (model for text in request.args.getlist("pick") for model in text.split(","))
    return tuple(dict.fromkeys(model for model in names if model))[:max_models]


def _fill(read_model: ReadModel, header: Header, now: float) -> Mapping[str, object]:
    query = parsed_query(ModelQuery, **({} if "size" in request.args else {"size": _ROWS}))
    view, mistake = table(read_model, query)
    run, picked = read_model.fit(query.fit), picked_models(MAX_PICKED)
    has_all, excluded = _ALL in picked, frozenset[str]()
    if run and has_all:
        excluded = frozenset(name.removeprefix(_EXCEPT) for name in picked if name.startswith(_EXCEPT)) - {
            *picked
        }
        ids = () if mistake else matching_ids(read_model, run, query)
        picked = tuple(model for model in ids if model not in excluded)[:MAX_PICKED]
    picked = tuple(model for model in picked if run and model in run.models)
    compared = comparison(_rows(read_model.table(run), picked[:MAX_MODELS])) if run and picked else None
    may: dict[str, list[str]] = {action.value: [] for action in (*OF_MODEL, CommandKind.PRIORITIZE)}
    for model in picked:
        for action in allowed_commands(read_model.state, run, run.models[model] if run else None):
            may[action.value].append(model)
    return {
        "view": view,
        "mistake": mistake,
        "picked": picked,
        "has_all": has_all,
        "excluded": sorted(excluded & run.models.keys()) if run else [],
        "most": MAX_MODELS,
        "most_picked": MAX_PICKED,
        "compared": compared,
        "differences": request.args.get("all") != "1",
        "may": may,
        "on_page": {row.id for row in view.rows} if view else frozenset(),
        "csv": api_url(header.name, "models.csv", fit=query.fit, filter=query.filter, sort=query.sort),
    }


def _rows(table: ModelTable, picked: tuple[str, ...]) -> list[ModelSummary]:
    """Return the rows of the selected models that exist."""
    return [row for model in picked if (row := table.row(model)) is not None]
