"""Renders a page whole, or only its live part: the same template, the same address below ``/fragments``.

A template extends `layout` (or ``_tabs.html``, which does) and fills the block `live`. A script asks for the fragment
again while something runs and puts it in place of the old one; without scripts the whole page says the same.
"""

from __future__ import annotations

from collections.abc import Callable

from flask import Blueprint, Flask, render_template
from flask.typing import RouteCallable

from dispatcher.pages import addresses
from dispatcher.pages.addresses import FRAGMENTS, is_fragment

RUNNING_S = 1.5
"""How often a page of what runs asks again. A report must be on the page within 2 s."""
IDLE_S = 10.0
"""How often a page of what rests asks again: somebody may start a run."""

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
"""(id, label, endpoint) of each tab of an experiment; that of a search is there where a fit searches."""

_ICONS = {
    "starting": "running", "running": "running", "finished": "finished", "failed": "failed", "lost": "failed",
    "ended": "finished", "paused": "paused", "stopping": "paused", "stopped": "paused",
}  # fmt: skip
"""State's word -> the icon of the browser's tab; others have the plain one."""


def install(app: Flask) -> None:
    """Give templates what they need to link pages."""
    app.jinja_env.globals.update(
        experiment_tabs=TABS,
        given=addresses.given,
        changed=addresses.changed,
        figure_url=addresses.figure_url,
        static_svg_url=addresses.static_svg_url,
        api_url=addresses.api_url,
    )


def live_route(pages: Blueprint, rule: str, endpoint: str) -> Callable[[RouteCallable], RouteCallable]:
    """A GET route for the page at `rule` and for its fragment; `url_for` gives the page."""

    def decorate(view: RouteCallable) -> RouteCallable:
        pages.add_url_rule(rule, endpoint, view)
        pages.add_url_rule(FRAGMENTS + rule, f"{endpoint}_fragment", view)
        return view

    return decorate


def render(template: str, *, title: str, is_live: bool, icon: str = "", **context: object) -> str:
    """The page of this request or, below `FRAGMENTS`, its fragment.

    Args:
        template: its file.
        title: of the browser's tab.
        is_live: whether the page may change by itself soon.
        icon: a state's word, for the tab's icon.
        context: what the template shows.
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
