"""How often workers were lost, and how soon they were back, over all runs: a fold of the cluster's log. Pure.

That log outlives runs, experiments and controllers, so there is nothing else to keep.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from cerebro.contract.events import ClusterEvent, WorkerJoined, WorkerLost, WorkerRemoved

_PRIOR_H = 20.0
"""Worker-hours between two losses, before there was one; it counts as one loss."""

_REMEMBERED_S = 30 * 24 * 3600.0
"""What is older says nothing of the machines that there are."""

_AWAY_S = 3600.0
"""Who is away for longer was brought back by somebody, or taken away on purpose."""

_LAST, _STAYS = 20, 2000
"""Returns, and stays of workers, that are looked at."""


class Frequency(NamedTuple):
    """Of workers that train.

    Attributes:
        losses_per_s: how often one is lost, a second that it is there.
        back_s: seconds until it is back.
    """

    losses_per_s: float
    back_s: float


@dataclass
class Absences:
    """What the cluster's log has told so far of workers that train."""

    _there: dict[str, float] = field(default_factory=dict)
    """Since when."""
    _gone: dict[str, float] = field(default_factory=dict)
    _stays: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_STAYS))
    """(from, until), each of which ended in a loss."""
    _given_back: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_STAYS))
    """Those whose worker was removed then: nobody lost it."""
    _returns: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_LAST))
    """(when, after how many seconds)."""

    def apply(self, event: ClusterEvent) -> None:
        """Take an event in."""
        match event:
            case WorkerJoined() if "train" in event.kinds:
                self._there.setdefault(event.worker, event.time)
                away_s = event.time - self._gone.pop(event.worker, event.time - 2 * _AWAY_S)
                if away_s <= _AWAY_S:
                    self._returns.append((event.time, away_s))
            case WorkerLost() if event.worker in self._there:
                self._stays.append((self._there.pop(event.worker), event.time))
                self._gone[event.worker] = event.time
            case WorkerRemoved() if event.worker in self._gone:
                at = self._gone.pop(event.worker)
                for stay in [stay for stay in self._stays if stay[1] == at][:1]:
                    self._stays.remove(stay)
                    self._given_back.append(stay)

    def frequency(self, now: float, join_s: float) -> Frequency:
        """What that says of the time to come.

        Args:
            now: the store's clock.
            join_s: taken for one return, which there is before any other.
        """
        began = now - _REMEMBERED_S
        stays = [*self._stays, *self._given_back, *((since, now) for since in self._there.values())]
        there_s = sum(max(0.0, until - max(began, since)) for since, until in stays)
        lost = sum(until >= began for _, until in self._stays)
        returns = [away_s for at, away_s in self._returns if at >= began]
        losses_per_s = (1 + lost) / (3600 * _PRIOR_H + there_s)
        return Frequency(losses_per_s, (join_s + sum(returns)) / (1 + len(returns)))
