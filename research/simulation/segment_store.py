"""The part of the in-memory store on segments and snapshots of logs."""

from __future__ import annotations

from cerebro.contract.events import Event, TaskCommitted, TaskFailed, TaskRevoked
from cerebro.contract.stored.segments import Segment, SegmentAnswer, SegmentRequest, SegmentsAnswer, Snapshot
from cerebro.errors import ConflictError, NotFoundError
from research.simulation.history_store import VirtualHistoryStore

_OVER = ("committed", "failed", "revoked")


class VirtualSegmentStore(VirtualHistoryStore):
    """The methods of `cerebro.runtime.kvs.segment_calls.SegmentCalls`, with the same meaning.

    Segments are read like the rest of a log, unless `Tables.files_are_lost`.
    """

    def cut(self, experiment: str, request: SegmentRequest) -> SegmentAnswer:
        """Move the oldest events of a log into a segment."""
        self._require(experiment, request.term, request.created)
        known = self._segments[experiment]
        after = known[-1].last if known else 0
        new_events = [event for event in self._own_events(experiment) if event.seq > after]
        moved = [
            event
            for event in new_events[: max(0, len(new_events) - request.keep)]
            if event.seq <= request.until
        ]
        if len(moved) < request.least or not moved:
            return SegmentAnswer(remaining=len(new_events))
        segment = Segment(
            first=moved[0].seq,
            last=moved[-1].seq,
            began=moved[0].time,
            ended=moved[-1].time,
            entries=len(moved),
            size=0,
            sha256="0" * 64,
            file=f"{moved[0].seq}.segment",
        )
        known.append(segment)
        for event in moved if experiment else ():
            if isinstance(event, TaskCommitted | TaskFailed | TaskRevoked):
                row = self._tasks.get((experiment, event.task))
                if row is not None and row.state in _OVER and row.attempt == event.attempt:
                    del self._tasks[experiment, event.task]
        self._notes = {
            key: seq for key, seq in self._notes.items() if key[0] != experiment or seq > segment.last
        }
        return SegmentAnswer(moved=segment, remaining=len(new_events) - len(moved))

    def segments(self, experiment: str) -> SegmentsAnswer:
        """Return the segments and snapshots of a log."""
        snapshots = tuple(snapshot for snapshot, _ in self._snapshots[experiment])
        remaining = sum(event.seq > self._floor(experiment) for event in self._own_events(experiment))
        return SegmentsAnswer(
            segments=tuple(self._segments[experiment]), snapshots=snapshots, remaining=remaining
        )

    def keep_snapshot(
        self, experiment: str, seq: int, of_format: str, term: int, content: bytes, *, created: float = 0.0
    ) -> Snapshot:
        """Store the state of a log."""
        self._require(experiment, term, created)
        found = Snapshot(
            seq=seq, format=of_format, time=self._now(), size=len(content), sha256="0" * 64, file=f"{seq}"
        )
        self._snapshots[experiment] = [(found, content), *self._snapshots[experiment][:1]]
        return found

    def snapshot(self, experiment: str, of_format: str) -> bytes | None:
        """Return the newest state of a log in this format."""
        found = (content for each, content in self._snapshots[experiment] if each.format == of_format)
        return next(found, None)

    def _require(self, experiment: str, term: int, created: float) -> None:
        if experiment and (experiment not in self._records or self._records[experiment].created != created):
            raise NotFoundError(f"no experiment {experiment!r}")
        if term != self._leader.term:
            raise ConflictError(f"leadership term {term} has ended")

    def _floor(self, experiment: str) -> int:
        """Return the number of the last event in a segment."""
        moved = self._segments[experiment]
        return moved[-1].last if moved else 0

    def _own_events(self, experiment: str) -> list[Event]:
        """Return the experiment's own events of a log."""
        if not experiment:
            return [*self._cluster_log]
        return [event for event in self._log(experiment) if event.seq in self._numbers[experiment]]
