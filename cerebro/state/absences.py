"""Frequency and duration of worker losses over all runs, from the cluster log. Pure.

The cluster log outlives runs, experiments and controllers, so no other storage is needed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from cerebro.contract.events import ClusterEvent, WorkerJoined, WorkerLost, WorkerRemoved

_PRIOR_H = 20.0
"""Assumed worker-hours per loss before the first; it counts as one loss."""

_REMEMBERED_S = 30 * 24 * 3600.0
"""Memory of 30 days: older events say nothing about the current machines."""

_AWAY_S = 3600.0
"""Longest absence that counts as a return; after longer ones a person intervened."""

_LAST, _MAX_PRESENCES = 20, 2000
"""Number of returns and of stays to remember."""


class Frequency(NamedTuple):
    """Loss statistics of training workers.

    Attributes:
        losses_per_s: losses per second of presence.
        back_s: seconds until the return.
    """

    losses_per_s: float
    back_s: float


@dataclass
class Absences:
    """Presence of training workers according to the cluster log."""

    _there: dict[str, float] = field(default_factory=dict)
    """Worker -> start of its presence."""
    _gone: dict[str, float] = field(default_factory=dict)
    _lost_presences: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_MAX_PRESENCES))
    """(from, until) of stays that ended in a loss."""
    _removed_presences: deque[tuple[float, float]] = field(
        default_factory=lambda: deque(maxlen=_MAX_PRESENCES)
    )
    """Stays that ended in a removal, which is no loss."""
    _returns: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_LAST))
    """(time, seconds away) of returns."""

    def apply(self, event: ClusterEvent) -> None:
        """Apply an event."""
        match event:
            case WorkerJoined() if "train" in event.kinds:
                self._there.setdefault(event.worker, event.time)
                away_s = event.time - self._gone.pop(event.worker, event.time - 2 * _AWAY_S)
                if away_s <= _AWAY_S:
                    self._returns.append((event.time, away_s))
            case WorkerLost() if event.worker in self._there:
                self._lost_presences.append((self._there.pop(event.worker), event.time))
                self._gone[event.worker] = event.time
            case WorkerRemoved() if event.worker in self._gone:
                at = self._gone.pop(event.worker)
                for presence in [presence for presence in self._lost_presences if presence[1] == at][:1]:
                    self._lost_presences.remove(presence)
                    self._removed_presences.append(presence)

    def frequency(self, now: float, join_s: float) -> Frequency:
        """Estimate future losses.

        Args:
            now: the store's clock.
            join_s: assumed seconds of a first return.
        """
        began = now - _REMEMBERED_S
        presences = [
            *self._lost_presences,
            *self._removed_presences,
            *((since, now) for since in self._there.values()),
        ]
        there_s = sum(max(0.0, until - max(began, since)) for since, until in presences)
        lost = sum(until >= began for _, until in self._lost_presences)
        returns = [away_s for at, away_s in self._returns if at >= began]
        losses_per_s = (1 + lost) / (3600 * _PRIOR_H + there_s)
        return Frequency(losses_per_s, (join_s + sum(returns)) / (1 + len(returns)))
