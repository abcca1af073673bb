"""Routes of the tab Checkpoints and of downloads. Programs download below ``/api`` with their token.

A download answers 404 for a file that no run of the experiment has written according to its log. `api.files.Files`
sends the file.
"""

from __future__ import annotations

from collections.abc import Mapping

from flask import Blueprint, Response, request

from cerebro.errors import NotFoundError
from dispatcher.checkpoints.view import checkpoints, reference
from dispatcher.pages.addresses import page_number
from dispatcher.pages.live_pages import live_route
from dispatcher.read_models.read_model import ReadModel
from dispatcher.tabs.header import Header
from dispatcher.tabs.tabs import Tabs


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the routes."""
    services = tabs.services

    @live_route(pages, "/experiments/<name:name>/checkpoints", "checkpoints")
    def page(name: str) -> Response:
        lost = services.lost

        def finish(header: Header, shown: Mapping[str, object]) -> Mapping[str, object]:
            return {**shown, "lost": lost.newest(name)}

        return tabs.answer(
            name,
            "checkpoints",
            "checkpoints/checkpoints.html",
            _fill,
            finish,
            other_version=lambda: lost.newest(name),
        )

    @pages.get("/experiments/<name:name>/checkpoints/<path:path>")
    def checkpoint_file(name: str, path: str) -> Response:
        # Serve only files that this experiment's log names; the address determines the experiment.
        path = f"{name}/{path}"
        checkpoint = services.reader.read(name, lambda read_model: reference(read_model, path))
        if checkpoint is None:
            raise NotFoundError(f"no run of {name} has written a checkpoint {path!r}")
        return services.files.download("checkpoints", path, path.replace("/", "-"))


def _fill(read_model: ReadModel, header: Header, now: float) -> Mapping[str, object]:
    arguments = request.args
    return {
        "view": checkpoints(
            read_model, fit=header.fits.chosen, model=arguments.get("model", "")[:100], page=page_number()
        )
    }
