"""An experiment's tab that shows more than its log says: what is looked up outside is, after the log is let go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from flask import request

from dispatcher.followed import Followed
from dispatcher.pages.rendering import render
from dispatcher.services import Services
from dispatcher.views.header import Header, header

T = TypeVar("T")


def tab_page(
    services: Services,
    name: str,
    tab: str,
    look: Callable[[Followed], T],
    finish: Callable[[Header, T], Mapping[str, object]],
) -> str:
    """The page of one tab, or its fragment: template ``TAB.html``.

    Args:
        look: takes from the followed experiment what the page needs; others wait meanwhile, so it must be quick.
        finish: what the template shows; may read files and ask the store.
    """
    reader = services.reader
    statuses, now, fit = reader.workers(), reader.now(), request.args.get("fit", "")

    def both(followed: Followed) -> tuple[Header, T]:
        return header(followed, now=now, fit=fit, statuses=statuses), look(followed)

    head, found = reader.look(name, both)
    return render(
        f"{tab}.html",
        title=f"{head.state} · {name} · {tab}",
        is_live=head.is_live,
        icon=head.state,
        header=head,
        tab=tab,
        **finish(head, found),
    )
