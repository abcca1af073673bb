"""One model: its curve, epochs, units with all attempts, what may be done with it; arrow keys lead to the next."""

from __future__ import annotations

from collections.abc import Mapping

from flask import Blueprint, Response

from dispatcher.followed import Followed
from dispatcher.pages.addresses import figure_url
from dispatcher.pages.asking import asked
from dispatcher.pages.rendering import live_route
from dispatcher.pages.tabs import Tabs, newest_action
from dispatcher.views.header import Header
from dispatcher.views.models import model as model_view
from dispatcher.views.units import UnitQuery, units

_UNITS = 50


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the route."""

    @live_route(pages, "/experiments/<name:name>/models/<path:model>", "model")
    def page(name: str, model: str) -> Response:
        def fill(followed: Followed, header: Header, now: float) -> Mapping[str, object]:
            view = model_view(followed, model, fit=header.fit)
            figure = figure_url(header.name, "curves", fit=view.run, models=model, top="0")
            own = units(followed.state, asked(UnitQuery, run=view.run, model=model, size=_UNITS))
            did = newest_action(followed.state, view.run, model)
            return {"view": view, "model": view.summary, "units": own, "figure": figure, "did": did}

        return tabs.answer(name, "models", "model.html", fill)
