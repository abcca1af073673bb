"""The queue of runs, and why each waits. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cerebro.contract.api import QueueEntry
from dispatcher.cluster.summary import Summary


@dataclass(frozen=True, kw_only=True)
class QueueRow:
    """A run that has not ended; `reason`: why it does not go on, empty if it does."""

    position: int
    experiment: str
    run: str
    state: str
    done: int
    total: int
    author: str
    requested: float | None
    reason: str


def queue_rows(queue: tuple[QueueEntry, ...], summaries: Mapping[str, Summary]) -> Iterable[QueueRow]:
    """The queue, oldest run first."""
    # The controller works on one experiment at a time: the one whose open run is oldest.
    first = queue[0] if queue else None
    for position, entry in enumerate(queue, start=1):
        known = summaries.get(entry.experiment)
        run = known.runs.get(entry.run) if known else None
        is_first = first is not None and entry.experiment == first.experiment
        reason = run.reason if run else ""
        if first is not None and entry != first and (not is_first or run is None or run.state == "queued"):
            reason = f"{first.run} of {first.experiment} is before it"
        yield QueueRow(
            position=position,
            experiment=entry.experiment,
            run=entry.run,
            state=run.state if run else "queued",
            done=run.done if run else 0,
            total=run.total if run else 0,
            author=run.author if run else "",
            requested=run.requested if run else None,
            reason=reason,
        )
