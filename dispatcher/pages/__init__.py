"""The pages of experiments: the list, each experiment's tabs, each model's page. One module per page."""

from __future__ import annotations

from flask import Blueprint, Flask

from dispatcher.pages import (
    analysis,
    curves,
    data,
    experiments,
    model,
    models,
    overview,
    rendering,
    report,
    schedule,
)
from dispatcher.pages.tabs import Tabs
from dispatcher.services import Services

_TABS = (overview, models, curves, analysis, schedule, data, model, report)


def register(app: Flask, services: Services) -> None:
    """Add the routes, under the blueprint ``pages``."""
    pages = Blueprint("pages", __name__)
    tabs = Tabs(services)
    experiments.register(pages, services)
    for module in _TABS:
        module.register(pages, tabs)
    rendering.install(app)
    app.register_blueprint(pages)
