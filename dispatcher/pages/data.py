"""Preprocessing: per split and worker, rows in = rows out + rows failed, and which rows failed and why."""

from __future__ import annotations

from collections.abc import Mapping

from flask import Blueprint, Response

from dispatcher.followed import Followed
from dispatcher.pages.addresses import figure_url
from dispatcher.pages.rendering import live_route
from dispatcher.pages.tabs import Tabs
from dispatcher.views.data import data
from dispatcher.views.header import Header


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the route."""

    @live_route(pages, "/experiments/<name:name>/data", "data")
    def page(name: str) -> Response:
        return tabs.answer(name, "data", "data.html", _fill)


def _fill(followed: Followed, header: Header, now: float) -> Mapping[str, object]:
    return {
        "view": data(followed, now=now),
        "record": followed.record,
        "figure": figure_url(header.name, "etl"),
    }
