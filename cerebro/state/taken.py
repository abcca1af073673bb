"""What others had of a run's devices, and what that leaves it. Pure.

A device that had a task of another run was not there for this one. So that time is absence, as a break is: it is no
idle time, and no order of the run's sub-epochs could have used it. The log of a run tells of it (`DevicesTaken`).

Others never have a device while the run itself does, so a bound that counts their time (`cerebro.state.bound`) holds
for what the run did.
"""

from __future__ import annotations

from cerebro.contract.events import DevicesTaken
from cerebro.state.runs import Run

_TICK_S = 1e-3
"""A gap that is rounding."""


def add_taken(run: Run, event: DevicesTaken) -> None:
    """Add the times in which others had devices of the run."""
    for span in event.spans:
        known = run.taken.setdefault(span.worker, [])
        newest = next((at for at in reversed(range(len(known))) if known[at].device == span.device), None)
        if newest is not None and span.since <= known[newest].until + _TICK_S:
            # Others have had it all the time since the last note.
            known[newest] = known[newest]._replace(until=span.until)
        else:
            known.append(span)
    run.taken_until = event.until


def taken_s(run: Run, worker: str, begin: float, end: float) -> float:
    """Device-seconds that others had of a worker between two times (the store's clock), but for breaks."""
    spans = run.taken.get(worker, ())
    return sum(open_s(run, max(span.since, begin), min(span.until, end)) for span in spans)


def open_s(run: Run, begin: float, end: float) -> float:
    """Seconds from `begin` to `end`, if that is later, but for breaks."""
    in_breaks = sum(max(0.0, min(end, until) - max(begin, since)) for since, until in run.breaks)
    return max(0.0, end - begin - in_breaks)
