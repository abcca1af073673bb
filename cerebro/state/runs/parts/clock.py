"""Times of a run, and its breaks and pauses."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(kw_only=True, slots=True)
class RunClock:
    """Times of a run in seconds of the store's clock; 0 if unknown."""

    requested: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    worked: float = 0.0
    """Time a worker last began or ended a task, or the run resumed."""
    first_start: float = math.inf
    """Start of the first sub-epoch; infinite before."""
    first_work: float = math.inf
    """Earliest time an ended sub-epoch began its work, after process start.

    Process start is unknown for failed attempts, so they count from their start."""
    newest_commit: float = 0.0
    """End of the newest sub-epoch; 0 before the first."""
    breaks: list[tuple[float, float]] = field(default_factory=list)
    """(from, to) of breaks, ascending: the run had ended, or had no worker. See `cerebro.state.runs.breaks`."""
    pauses: list[tuple[float, float]] = field(default_factory=list)
    """(from, to) of pauses, ascending; `to` is infinite during one. Running tasks continue, so they are no breaks."""

    @property
    def begun(self) -> float:
        """Start of the run, shifted by its breaks; 0 before the start. End minus this is time without breaks."""
        return self.started + sum(until - since for since, until in self.breaks) if self.started else 0.0

    def add_break(self, since: float, until: float) -> None:
        """Add a break; add breaks in order."""
        self.breaks.append((since, until))
        self.worked = max(self.worked, until)

    def begin_pause(self, at: float) -> None:
        """Add a pause without an end."""
        self.pauses.append((at, math.inf))

    def end_pause(self, at: float) -> None:
        """End the open pause, if any."""
        if self.pauses and self.pauses[-1][1] == math.inf:
            self.pauses[-1] = self.pauses[-1][0], at

    def worked_until(self, at: float) -> float:
        """Convert a time to a clock that stops in the breaks and pauses."""
        stood, edge = 0.0, -math.inf
        for since, until in sorted([*self.breaks, *self.pauses]):
            stood += max(0.0, min(at, until) - max(since, edge))
            edge = max(edge, until)
        return at - stood

    def open_s(self, begin: float, end: float) -> float:
        """Return the seconds from `begin` to `end` without breaks; 0 if `end` is earlier."""
        in_breaks = sum(max(0.0, min(end, until) - max(begin, since)) for since, until in self.breaks)
        return max(0.0, end - begin - in_breaks)
