"""A state that was torn in the middle of an event, made whole again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cerebro.contract.events import Event
from cerebro.errors import UnreadableError
from cerebro.state.experiment import ExperimentState


def whole(
    state: ExperimentState,
    read: Callable[[int], Sequence[Event]],
    begin: Callable[[str], ExperimentState] | None = None,
) -> ExperimentState:
    """The state itself; if it is torn, what it was before that event, folded anew.

    Args:
        read: the events after a number, oldest first, as many as it likes, none at the end; may raise
            `UnreadableError`.
        begin: the newest fold of a log that is kept; one that is newer than the state is of no use.
    """
    if not state.torn:
        return state
    made = begin(state.name) if begin is not None else _begun(state)
    if made.seq > state.seq:
        made = _begun(state)
    while made.seq < state.seq:
        try:
            events = read(made.seq)
        except UnreadableError as error:
            events = error.readable
        if not events:
            break
        for event in events[: state.seq - made.seq]:
            made.apply(event)
    return made


def _begun(state: ExperimentState) -> ExperimentState:
    """At the beginning of its log."""
    return ExperimentState(
        name=state.name, archive_after=state.archive_after, keeps_archived=state.keeps_archived
    )
