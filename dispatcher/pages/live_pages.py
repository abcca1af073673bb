"""Rendering of a whole page, or of its live part only below ``/fragments``.

A template extends `layout` (or ``_tabs.html``, which extends it) and fills the block `live`. A script polls the
fragment and replaces the old content. Without scripts the whole page shows the same. The routes
of all pages that change use `live_route`; `tabs.tabs` renders the tabs of an experiment.
"""

from __future__ import annotations

from collections.abc import Callable

from flask import Blueprint, Flask, render_template
from flask.typing import RouteCallable

from dispatcher.pages import addresses
from dispatcher.pages.addresses import FRAGMENTS, is_fragment

RUNNING_S = 1.5
"""Poll interval in seconds of a page with running work. A report must be visible within 2 s."""
IDLE_S = 10.0
"""Poll interval in seconds of other pages."""

TABS = (
    ("overview", "Overview", "pages.experiment"),
    ("models", "Models", "pages.models"),
    ("search", "Search", "pages.search"),
    ("curves", "Curves", "pages.curves"),
    ("analysis", "Analysis", "pages.analysis"),
    ("schedule", "Schedule", "pages.schedule"),
    ("data", "Data", "pages.data"),
    ("logs", "Logs", "pages.logs"),
    ("code", "Code", "pages.code"),
    ("checkpoints", "Checkpoints", "pages.checkpoints"),
    ("history", "History", "pages.history"),
)
"""(id, label, endpoint) of each tab of an experiment. The tab Search appears only for fits with a search."""

_ICONS = {
    "starting": "running", "running": "running", "finished": "finished", "failed": "failed", "lost": "failed",
    "ended": "finished", "paused": "paused", "stopping": "paused", "stopped": "paused",
}  # fmt: skip
"""State -> icon of the browser tab. Other states have the plain icon."""


def install(app: Flask) -> None:
    """Register functions that templates use to link pages."""
    app.jinja_env.globals.update(
        experiment_tabs=TABS,
        parameter=addresses.parameter,
        changed=addresses.changed,
        figure_url=addresses.figure_url,
        static_svg_url=addresses.static_svg_url,
        api_url=addresses.api_url,
        compare_pick=addresses.compare_pick,
    )


def live_route(pages: Blueprint, rule: str, endpoint: str) -> Callable[[RouteCallable], RouteCallable]:
    """Register a GET route for the page at `rule` and for its fragment. `url_for` returns the page."""

    def decorate(view: RouteCallable) -> RouteCallable:
        pages.add_url_rule(rule, endpoint, view)
        pages.add_url_rule(FRAGMENTS + rule, f"{endpoint}_fragment", view)
        return view

    return decorate


def render(template: str, *, title: str, is_live: bool, icon: str = "", **context: object) -> str:
    """Render the page of this request, or its fragment below `FRAGMENTS`.

    Args:
        template: file name.
        title: title of the browser tab.
        is_live: True if the page may change soon.
        icon: state that selects the icon of the browser tab.
        context: variables of the template.
    """
    return render_template(
        template,
        layout="pages/_bare.html" if is_fragment() else "pages/base.html",
        is_fragment=is_fragment(),
        every=RUNNING_S if is_live else IDLE_S,
        page_title=title,
        page_icon=_ICONS.get(icon, ""),
        here=addresses.changed(),
        **context,
    )
