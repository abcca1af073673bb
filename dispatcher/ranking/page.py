"""Route of the page Ranking, which the overview links. A child process computes the ranking once."""

from __future__ import annotations

from collections.abc import Mapping

from flask import Blueprint, Response

from cerebro.figures.ranking.results import RankingRequest
from dispatcher.pages.live_pages import live_route
from dispatcher.pages.queries import parsed_query
from dispatcher.ranking.view import MAX_SIZE, Choice, RankingQuery, choose, interval_bars, view_of
from dispatcher.read_models.read_model import ReadModel
from dispatcher.tabs.header import Header
from dispatcher.tabs.tabs import Tabs

_WAIT_S = 0.2
"""Maximum wait for a new ranking. Small ones take less; for others, the page polls."""
CONFIDENCES = (0.9, 0.95, 0.99)


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the route."""
    rankings = tabs.services.rankings

    def find(
        read_model: ReadModel, header: Header, now: float
    ) -> tuple[RankingQuery, Choice[RankingRequest]]:
        query = parsed_query(RankingQuery)
        return query, choose(read_model, query)

    def finish(header: Header, found: tuple[RankingQuery, Choice[RankingRequest]]) -> Mapping[str, object]:
        query, choice = found
        outcome = rankings.find(choice.request, choice.created, wait_s=_WAIT_S) if choice.request else None
        ranking = outcome.ranking if outcome else None
        view = view_of(choice, ranking, outcome.reason if outcome else "", query.size)
        return {
            "view": view,
            "runs": choice.runs,
            "query": query,
            "metric": choice.request.metric if choice.request else query.metric,
            "bars": interval_bars(view.ranking.models) if view.ranking else (),
            "confidences": CONFIDENCES,
            "most": MAX_SIZE,
        }

    @live_route(pages, "/experiments/<name:name>/ranking", "ranking")
    def page(name: str) -> Response:
        return tabs.answer(
            name, "ranking", "ranking/ranking.html", find, finish, other_version=rankings.version
        )
