"""Route of the page Cluster. `dispatcher.cluster.snapshot` supplies its data, also for the read API."""

from __future__ import annotations

from flask import Blueprint, Response, request

from dispatcher.cluster.view import SPANS
from dispatcher.pages.addresses import page_number
from dispatcher.pages.live_pages import live_route, render
from dispatcher.tabs.tabs import Tabs


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the route."""
    cluster = tabs.services.cluster

    @live_route(pages, "/cluster", "cluster")
    def page() -> Response:
        view = cluster.view(span=request.args.get("span", ""), page=page_number())
        disks = cluster.volumes()
        title = f"{view.totals.running} of {view.total} running · cluster" if view.total else "cluster"
        is_live = bool(view.queue) or disks.is_measuring
        return Response(
            render("cluster/cluster.html", title=title, is_live=is_live, view=view, disks=disks, spans=SPANS)
        )
