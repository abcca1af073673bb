"""Who asked for what in an experiment, newest first."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from cerebro.contract.base import Contract
from cerebro.state import ExperimentState
from dispatcher.pages.tables import page_of


class ActionQuery(Contract):
    """Which page of the list."""

    page: int = Field(1, ge=1, le=1_000_000)
    size: int = Field(100, ge=1, le=500)


@dataclass(frozen=True, kw_only=True)
class ActionRow:
    """Something that a user asked for, at `time` (seconds since the epoch); `seq` is its place in the event log."""

    seq: int
    time: float
    by: str
    what: str
    run: str
    model: str
    is_late: bool
    """It came too late and had no effect."""


@dataclass(frozen=True, kw_only=True)
class ActionsView:
    """A page of the list, newest first."""

    rows: tuple[ActionRow, ...]
    page: int
    pages: int
    size: int
    total: int


def actions(state: ExperimentState, asked: ActionQuery) -> ActionsView:
    """A page of all that users asked for."""
    page = page_of(list(reversed(state.actions)), asked.page, asked.size)
    return ActionsView(
        rows=tuple(
            ActionRow(
                seq=action.seq,
                time=action.time,
                by=action.by,
                what=action.what,
                run=action.run,
                model=action.model,
                is_late=action.is_late,
            )
            for action in page.rows
        ),
        page=page.page,
        pages=page.pages,
        size=asked.size,
        total=len(state.actions),
    )
