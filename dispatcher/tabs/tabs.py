"""Responses of an experiment's tabs: header, tab content, 304 if nothing has changed.

Each tab's `page` module calls `Tabs.answer` with its view function and template. Only fragments get a 304 or a cached
body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from flask import Response, request

from cerebro.state import CommandRecord, ExperimentState
from dispatcher.pages.addresses import is_fragment
from dispatcher.pages.live_pages import render
from dispatcher.read_models.read_model import ReadModel
from dispatcher.services import Services
from dispatcher.tabs.header import Header, header

T = TypeVar("T")
Variables = Mapping[str, object]
"""Variables of a tab's template."""
View = Callable[[ReadModel, Header, float], T]
"""Computes a tab's data from the read model, its header and the time. Runs under the lock, so it must be pure and
fast.
"""
Finish = Callable[[Header, T], Variables]
"""Computes the template's variables from that data. Runs without the lock, so it may read files and call the store.
"""


def _identity(_: Header, shown: Any) -> Variables:
    found: Variables = shown
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
        finish: Finish[T] = _identity,
        *,
        other_version: Callable[[], object] = tuple,
        about: str = "",
    ) -> Response:
        """Return the page of a tab, or its fragment.

        Args:
            finish: default: the view's result is the template's variables.
            other_version: returns a value that changes whenever the result of `finish` changes without a new event.
                Callable without a request context.
            about: subject of the page for its title, such as a model; by default the tab.

        Raises:
            NotFoundError: the experiment does not exist.
            IllegalEventError: this version cannot read the log.
            StoreUnavailableError: the store is away and was never read.
        """
        reader, fit = self.services.reader, request.args.get("fit", "")

        def build() -> str:
            statuses, queue_positions, now = reader.workers(), reader.queue_positions(name), reader.now()

            def read(read_model: ReadModel) -> tuple[Header, CommandRecord | None, dict[str, str], T]:
                head = header(
                    read_model, now=now, fit=fit, statuses=statuses, queue_positions=queue_positions
                )
                acted = newest_command(read_model.state, head.run.id)
                return head, acted, read_model.state.tags, view(read_model, head, now)

            head, acted, tags, found = reader.read(name, read)
            return render(
                template,
                title=_title(head, tab, about),
                is_live=head.is_live,
                icon=head.state,
                header=head,
                tab=tab,
                acted=acted,
                tags=tags,
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
                other_version(),
            )

        return self.services.answers.answer(version, build)


def newest_command(state: ExperimentState, run: str, model: str = "") -> CommandRecord | None:
    """Return the newest effective command on a run or one of its models. Includes the command that created the
    model.
    """
    found = (
        command
        for command in reversed(state.commands)
        if (command.run, command.is_late) == (run, False)
        and (command.model == model or model in command.added)
    )
    return next(found, None)


def _title(head: Header, tab: str, about: str) -> str:
    share = f"{100 * head.run.done // head.run.total} % " if head.is_live and head.run.total else ""
    where = "" if tab == "overview" else f" · {tab}"
    return f"{about} · {head.name}" if about else f"{share}{head.state} · {head.name}{where}"
