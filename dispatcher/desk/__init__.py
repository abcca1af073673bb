"""Pages beside the figures: actions, logs, code, checkpoints, history, the cluster. One module per page."""

from __future__ import annotations

from flask import Blueprint, Flask

from dispatcher.desk import acting, checkpoints, cluster, code, history, logs
from dispatcher.pages.tabs import Tabs
from dispatcher.services import Services


def register(app: Flask, services: Services) -> None:
    """Add the routes."""
    blueprint = Blueprint("desk", __name__)
    tabs = Tabs(services)
    acting.add(blueprint, services)
    logs.add(blueprint, services, tabs)
    code.add(blueprint, services, tabs)
    checkpoints.add(blueprint, services, tabs)
    history.add(blueprint, tabs)
    cluster.add(blueprint, services)
    app.register_blueprint(blueprint)
