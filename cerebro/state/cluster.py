"""State of the cluster: workers and their replicas, from the cluster log.

Experiment states apply the same events with the same code (`cerebro.state.workers`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cerebro.contract.events import ClusterEvent, WorkerJoined, WorkerLost, WorkerRemoved
from cerebro.errors import IllegalEventError
from cerebro.state import workers
from cerebro.state.absences import Absences
from cerebro.state.workers import Worker


@dataclass(kw_only=True)
class ClusterState:
    """State after all events of the cluster log."""

    seq: int = 0
    """Number of the newest event applied."""
    workers: dict[str, Worker] = field(default_factory=dict)
    """Workers that have not left for good."""
    absences: Absences = field(default_factory=Absences)
    """Statistics of lost workers."""

    def apply(self, event: ClusterEvent) -> None:
        """Apply one event.

        Raises:
            IllegalEventError: it does not fit; the state is unchanged.
        """
        if event.seq != self.seq + 1:
            raise IllegalEventError(f"event {event.seq} of the cluster follows event {self.seq}")
        self._check(event)
        workers.apply(self.workers, event)
        self.absences.apply(event)
        if isinstance(event, WorkerRemoved):
            del self.workers[event.worker]
        self.seq += 1

    def _check(self, event: ClusterEvent) -> None:
        match event:
            case WorkerJoined():
                known = self.workers.get(event.worker)
                if known is not None and known.is_alive:
                    raise IllegalEventError(f"{event.worker} joined twice without being lost between")
            case WorkerLost():
                known = self.workers.get(event.worker)
                if known is None or not known.is_alive:
                    raise IllegalEventError(f"{event.worker} was lost without having joined")
