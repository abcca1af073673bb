"""What others had of a run's devices, and what that leaves it. Pure.

A device that had a task of another run was not there for this one. So that time is absence, as a break is: it is no
idle time, and no order of the run's units could have used it. The log of a run tells of it (`DevicesTaken`).

Others never have a device while the run itself does, so a bound that counts their time holds for what the run did.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from cerebro.contract.events import DevicesTaken
from cerebro.contract.runs import TakenSpan
from cerebro.state.runs import Run

_TICK_S = 1e-3
"""What is lacking is rounding: it must not be waited for until others give a device back."""


def take(run: Run, event: DevicesTaken) -> None:
    """Note what an event tells."""
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


def least_s(
    run: Run, models: Mapping[str, float], work: Mapping[str, float], places: Mapping[str, int]
) -> float:
    """Seconds, but for breaks, from the beginning of the run's makespan until all that it did can have been done, on
    the devices that others left it.

    A model is on one worker at a time, and a device trains one model at a time (seed paper, section 5.1); so the
    longest model needs some device, and each worker's work all of its own.

    Args:
        models: what each model trained, in seconds.
        work: what was trained on each worker, in device-seconds.
        places: devices of each worker on which the run could train; one that is not in it has one.
    """
    longest, zero = max(models.values(), default=0.0), run.zero
    counts = {name: places.get(name, 1) for name in {*places, *work}}
    if not any(run.taken.values()):
        return max([longest, *(seconds / counts[name] for name, seconds in work.items())])
    found = [_given(seconds, counts[name], _edges(run, zero, [name])) for name, seconds in work.items()]
    total = sum(counts.values())
    return max([_given(longest, total, _edges(run, zero, counts), most=1), *found])


def _edges(run: Run, zero: float, workers: Iterable[str]) -> Iterator[tuple[float, int]]:
    """(seconds since `zero` but for breaks, change of the number of devices that others have), in order."""
    spans: Iterable[TakenSpan] = chain.from_iterable(run.taken.get(name, ()) for name in workers)
    found = []
    for span in spans:
        if span.until > zero:
            found += [(open_s(run, zero, span.since), 1), (open_s(run, zero, span.until), -1)]
    yield from sorted(found)


def _given(seconds: float, devices: int, edges: Iterable[tuple[float, int]], most: int = 0) -> float:
    """When so many device-seconds can have been had, of at most `most` devices at once (0: of all)."""
    at, left, taken = 0.0, seconds, 0
    for edge, change in (*edges, (math.inf, 0)):
        free = max(0, devices - taken)
        rate = min(free, most) if most else free
        given = rate * (edge - at) if rate else 0.0
        if given >= left - _TICK_S:
            return min(edge, at + (left / rate if rate else 0.0))
        left, at, taken = left - given, edge, taken + change
    return at
