"""The page of registered models. It shows; notebooks and the command line register and move aliases."""

from __future__ import annotations

from flask import Blueprint, Response

from dispatcher.pages.rendering import live_route, render
from dispatcher.registry.view import Registry
from dispatcher.tabs.tabs import Tabs


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the route."""
    registry = Registry(tabs.services.reader, tabs.services.monotonic)

    @live_route(pages, "/registry", "registry")
    def page() -> Response:
        models = registry.look()
        is_live = any(version.state == "running" for model in models for version in model.versions)
        title = "Registered models"
        return Response(render("registry/registry.html", title=title, is_live=is_live, models=models))
