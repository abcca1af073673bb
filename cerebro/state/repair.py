"""Repair of a state that an error has torn within an event."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cerebro.contract.events import Event
from cerebro.errors import UnreadableError
from cerebro.state.experiment import ExperimentState


def repair_state(
    state: ExperimentState,
    read: Callable[[int], Sequence[Event]],
    begin: Callable[[str], ExperimentState] | None = None,
) -> ExperimentState:
    """Return the state; if it is torn, recompute it before the failed event.

    Args:
        read: returns events after a number, oldest first; an empty sequence after the last one. May raise
            `UnreadableError`.
        begin: returns the newest snapshot of a log; ignored if newer than the state.
    """
    if not state.torn:
        return state
    repaired_state = begin(state.name) if begin is not None else _begun(state)
    if repaired_state.seq > state.seq:
        repaired_state = _begun(state)
    while repaired_state.seq < state.seq:
        try:
            events = read(repaired_state.seq)
        except UnreadableError as error:
            events = error.readable
        if not events:
            break
        for event in events[: state.seq - repaired_state.seq]:
            repaired_state.apply(event)
    return repaired_state


def _begun(state: ExperimentState) -> ExperimentState:
    """The state before the log's first event."""
    return ExperimentState(
        name=state.name, compact_after=state.compact_after, keeps_compacted=state.keeps_compacted
    )
