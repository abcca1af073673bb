"""What all tabs of an experiment do: follow its log, make the header, answer 304 while nothing has changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flask import Response, request

from cerebro.state import Action, ExperimentState
from dispatcher.followed import Followed
from dispatcher.pages.addresses import is_fragment
from dispatcher.pages.rendering import render
from dispatcher.services import Services
from dispatcher.views.header import Header, header

Fill = Callable[[Followed, Header, float], Mapping[str, object]]
"""What a tab's template shows, from the followed experiment, its header and the time; pure."""


@dataclass(frozen=True)
class Tabs:
    """Answers requests for tabs. Safe for several threads."""

    services: Services

    def answer(self, name: str, tab: str, template: str, fill: Fill) -> Response:
        """The page of one tab, or its fragment.

        Raises:
            NotFoundError: there is no such experiment.
            IllegalEventError: its log does not fit this program.
            StoreUnavailableError: the store is away and was never read.
        """
        reader, fit = self.services.reader, request.args.get("fit", "")

        def build() -> str:
            statuses, now = reader.workers(), reader.now()

            def look(followed: Followed) -> tuple[Header, Mapping[str, object]]:
                head = header(followed, now=now, fit=fit, statuses=statuses)
                acted = newest_action(followed.state, head.run)
                return head, {"acted": acted, **fill(followed, head, now)}

            head, shown = reader.look(name, look)
            title, icon = _title(head, tab), head.state
            return render(
                template, title=title, is_live=head.is_live, icon=icon, header=head, tab=tab, **shown
            )

        if not is_fragment():
            return Response(build())
        version = (*reader.version(name), reader.crew_version(), reader.outage)
        return self.services.answers.answer(version, build)


def newest_action(state: ExperimentState, run: str, model: str = "") -> Action | None:
    """The newest wish with an effect on a run, or on one of its models."""
    found = (
        action
        for action in reversed(state.actions)
        if (action.run, action.model, action.is_late) == (run, model, False)
    )
    return next(found, None)


def _title(head: Header, tab: str) -> str:
    share = f"{100 * head.done // head.total} % " if head.is_live and head.total else ""
    where = "" if tab == "overview" else f" · {tab}"
    return f"{share}{head.state} · {head.name}{where}"
