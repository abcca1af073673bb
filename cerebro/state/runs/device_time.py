"""Device time of a run that other runs used. Pure.

While another run's task has a device, the device is absent for this run, as in a break: that time is not idle, and no
order of sub-epochs could use it. The run's log records it (`DevicesTaken`). It never overlaps the run's own use, so a
bound that includes it (`cerebro.state.reports.makespan_bound`) is valid.
"""

from __future__ import annotations

from cerebro.contract.events import DevicesTaken
from cerebro.state.runs.run import Run

_TICK_S = 1e-3
"""Gap that counts as rounding."""


def add_taken(run: Run, event: DevicesTaken) -> None:
    """Add the spans in which other runs had devices of the run."""
    for span in event.spans:
        known = run.taken.setdefault(span.worker, [])
        newest = next((at for at in reversed(range(len(known))) if known[at].device == span.device), None)
        if newest is not None and span.since <= known[newest].until + _TICK_S:
            # Continuous use since the last record.
            known[newest] = known[newest]._replace(until=span.until)
        else:
            known.append(span)
    run.taken_until = event.until


def taken_s(run: Run, worker: str, begin: float, end: float) -> float:
    """Return the device-seconds of other runs on a worker between two times, without breaks."""
    spans = run.taken.get(worker, ())
    return sum(open_s(run, max(span.since, begin), min(span.until, end)) for span in spans)


def open_s(run: Run, begin: float, end: float) -> float:
    """Return the seconds from `begin` to `end` without breaks; 0 if `end` is earlier."""
    in_breaks = sum(max(0.0, min(end, until) - max(begin, since)) for since, until in run.breaks)
    return max(0.0, end - begin - in_breaks)
