"""Route of the page of registered models, which is read-only.

Users register models and move aliases in notebooks or on the command line.
"""

from __future__ import annotations

from flask import Blueprint, Response

from dispatcher.pages.live_pages import live_route, render
from dispatcher.registry.view import Registry
from dispatcher.tabs.tabs import Tabs


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the route."""
    registry = Registry(tabs.services.reader, tabs.services.monotonic)

    @live_route(pages, "/registry", "registry")
    def page() -> Response:
        models = registry.models()
        is_live = any(version.state == "running" for model in models for version in model.versions)
        title = "Registered models"
        return Response(render("registry/registry.html", title=title, is_live=is_live, models=models))
