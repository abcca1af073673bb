"""Commands of users in one experiment, newest first. Pure; called by the tab History and the read API."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from cerebro.contract.base import Contract
from cerebro.state import CommandRecord, ExperimentState
from dispatcher.pages.tables import page_of


class CommandQuery(Contract):
    """Page of the list."""

    page: int = Field(1, ge=1, le=1_000_000)
    size: int = Field(100, ge=1, le=500)


@dataclass(frozen=True, kw_only=True)
class CommandsView:
    """A page of commands, newest first. `seq` of a row is its position in the event log."""

    rows: tuple[CommandRecord, ...]
    page: int
    pages: int
    size: int
    total: int


def commands(state: ExperimentState, query: CommandQuery) -> CommandsView:
    """Return a page of commands."""
    page = page_of(list(reversed(state.commands)), query.page, query.size)
    return CommandsView(
        rows=tuple(page.rows), page=page.page, pages=page.pages, size=query.size, total=len(state.commands)
    )
