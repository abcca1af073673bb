"""What all tabs of an experiment do: follow its log, make the header, answer 304 while nothing has changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from flask import Response, request

from cerebro.state import CommandRecord, ExperimentState
from dispatcher.pages.addresses import is_fragment
from dispatcher.pages.rendering import render
from dispatcher.reading.read_model import ReadModel
from dispatcher.services import Services
from dispatcher.tabs.header import Header, header

T = TypeVar("T")
Shown = Mapping[str, object]
"""What a tab's template shows."""
View = Callable[[ReadModel, Header, float], T]
"""What a tab takes from the read model, its header and the time. Others wait meanwhile: it is pure, and quick."""
Finish = Callable[[Header, T], Shown]
"""What the template shows of that; may read files and ask the store, since nobody waits any more."""


def _as_it_is(_: Header, shown: Any) -> Shown:
    found: Shown = shown
    return found


@dataclass(frozen=True)
class Tabs:
    """Answers requests for tabs. Safe for several threads."""

    services: Services

    def answer(
        self,
        name: str,
        tab: str,
        template: str,
        view: View[T],
        finish: Finish[T] = _as_it_is,
        *,
        beside: Callable[[], object] = tuple,
    ) -> Response:
        """The page of one tab, or its fragment.

        Args:
            finish: may be left out if the view is what the template shows.
            beside: makes what differs whenever what `finish` finds outside the log does; needs no request.

        Raises:
            NotFoundError: there is no such experiment.
            IllegalEventError: its log does not fit this program.
            StoreUnavailableError: the store is away and was never read.
        """
        reader, fit = self.services.reader, request.args.get("fit", "")

        def build() -> str:
            statuses, queue_positions, now = reader.workers(), reader.queue_positions(name), reader.now()

            def both(read_model: ReadModel) -> tuple[Header, CommandRecord | None, T]:
                head = header(
                    read_model, now=now, fit=fit, statuses=statuses, queue_positions=queue_positions
                )
                return head, newest_command(read_model.state, head.run), view(read_model, head, now)

            head, acted, found = reader.look(name, both)
            return render(
                template,
                title=_title(head, tab),
                is_live=head.is_live,
                icon=head.state,
                header=head,
                tab=tab,
                acted=acted,
                **finish(head, found),
            )

        if not is_fragment():
            return Response(build())

        def version() -> object:
            return (
                reader.version(name),
                reader.workers.version(),
                reader.queue_positions(name),
                reader.outage,
                beside(),
            )

        return self.services.answers.answer(version, build)


def newest_command(state: ExperimentState, run: str, model: str = "") -> CommandRecord | None:
    """The newest command with an effect on a run, or on one of its models: that which made it, too."""
    found = (
        command
        for command in reversed(state.commands)
        if (command.run, command.is_late) == (run, False)
        and (command.model == model or model in command.added)
    )
    return next(found, None)


def _title(head: Header, tab: str) -> str:
    share = f"{100 * head.done // head.total} % " if head.is_live and head.total else ""
    where = "" if tab == "overview" else f" · {tab}"
    return f"{share}{head.state} · {head.name}{where}"
