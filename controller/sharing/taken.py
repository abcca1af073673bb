"""What other runs had of a run's devices, noted in its log: whoever reads that log alone sees no idle time where there
was none. Pure: the folds of the open runs in, steps out.

Noted about once a minute, more often at first; before an epoch or the run itself is judged; and before a run that took
something ends, because its log may not be read any more after that. A controller that starts anew finds in the logs how
far it was told.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from cerebro.contract import api
from cerebro.contract.events import DevicesTaken, EpochCompleted, RunFinished
from cerebro.contract.runs import FitPlan, TakenSpan
from cerebro.state import Run
from cerebro.state.timeline import busy
from controller.decisions.core import Core
from controller.decisions.decide import Step
from controller.sharing.arbiter import Place, RunRef

EVERY_S = 60.0
"""Between two notes; a second more for each device beyond 60, so that they stay a small part of a large run's log."""

_FIRST_S = 10.0

_APART_S = 1.0
"""Two tasks of others that follow each other so closely had the device together. And what is so new need not be told
before a run is judged."""

_Span = tuple[float, float]


class Write(NamedTuple):
    """Steps for one experiment."""

    core: Core
    steps: list[Step]


class TakenTime:
    """Decides when to note what. Belongs to a loop; not thread-safe."""

    def __init__(self) -> None:
        self._next: dict[RunRef, float] = {}
        """When a run is to be told next, if it is not judged before."""
        self._told: dict[RunRef, tuple[tuple[int, ...], float]] = {}
        """For which epochs, or its end, a run was last told before it was judged, and when."""

    def noted(
        self,
        core: Core,
        run: Run,
        steps: Sequence[Step],
        open_runs: Iterable[tuple[Core, Run]],
        now: float,
        *,
        is_whole: bool = True,
    ) -> Iterator[Write]:
        """A run's steps, and what is to be noted before them: of it, or of others because it ends. If it is to be
        judged, it is told first, and judged by what it then knows, the next time that it decides.

        Args:
            open_runs: all of those that are worked on.
            now: the time that an event would have.
            is_whole: whether these are all. As long as the log of one is read, nothing is told that can wait: once a
                time is told, what was not known of it never is.
        """
        others = [(other, each) for other, each in open_runs if each is not run]
        judged = _judgements(steps)
        note = None
        if others and _has_begun(run):
            if judged:
                is_due = now - _since(run) >= _APART_S and self._is_to_be_told(core, run, judged, now)
            else:
                is_due = is_whole and self._is_due(core, run, now)
            if is_due:
                note = _note(core, run, [each for _, each in others], now)
        if any(isinstance(event, RunFinished) for event in judged):
            for other, each in others:
                # What has ended is not looked at any more.
                if _has_begun(each) and _note(other, each, [run], now) is not None:
                    theirs = [one for _, one in others if one is not each]
                    if told := _note(other, each, [run, *theirs], now):
                        yield Write(other, [told])
        if note is None:
            yield Write(core, [*steps])
        else:
            unjudged = (s for s in steps if not isinstance(s, api.Note) or s.event not in judged)
            yield Write(core, [note, *unjudged])

    def _is_to_be_told(
        self, core: Core, run: Run, judged: Sequence[RunFinished | EpochCompleted], now: float
    ) -> bool:
        """Whether a run that is to be judged was not told just before for the same reason: where a decision takes
        longer than what may stay untold, it would be told again and again, and never be judged."""
        ref = RunRef(core.state.name, run.id)
        what = tuple(event.epoch if isinstance(event, EpochCompleted) else 0 for event in judged)
        told_for, at = self._told.get(ref, ((), 0.0))
        if told_for == what and now - at < EVERY_S:
            return False
        self._told[ref] = what, now
        return True

    def _is_due(self, core: Core, run: Run, now: float) -> bool:
        ref = RunRef(core.state.name, run.id)
        if now < self._next.setdefault(ref, _since(run) + _FIRST_S):
            return False
        # More often at first: a minute is much of a short run.
        every_s = min(max(EVERY_S, len(_places(core, run))), max(_FIRST_S, (_since(run) - run.zero) / 4))
        is_due = now >= _since(run) + every_s
        self._next[ref] = (now if is_due else _since(run)) + every_s
        return is_due


def _judgements(steps: Sequence[Step]) -> list[RunFinished | EpochCompleted]:
    events = (step.event for step in steps if isinstance(step, api.Note))
    return [event for event in events if isinstance(event, RunFinished | EpochCompleted)]


def _has_begun(run: Run) -> bool:
    return isinstance(run.plan, FitPlan) and math.isfinite(run.zero)


def _since(run: Run) -> float:
    """What others had before is told, or does not matter to it."""
    return max(run.taken_until, run.zero)


def _note(core: Core, run: Run, others: Iterable[Run], now: float) -> Step | None:
    spans = taken(run, others, _places(core, run), _since(run), now)
    return api.Note(event=DevicesTaken(run=run.id, until=now, spans=tuple(spans))) if spans else None


def taken(
    run: Run, others: Iterable[Run], places: frozenset[Place], since: float, until: float
) -> list[TakenSpan]:
    """When others had these devices between two times; those that ended first come first."""
    own, theirs = _busy([run], places, since, until), _busy(others, places, since, until)
    found = [
        TakenSpan(place.worker, place.device, *span)
        for place, spans in theirs.items()
        for span in _without(_merged(spans), sorted(own.get(place, ())))
    ]
    return sorted(found, key=lambda span: (span.until, span.worker, span.device))


def _places(core: Core, run: Run) -> frozenset[Place]:
    """Devices on which the run could train."""
    assert isinstance(run.plan, FitPlan)
    held = {(run.plan.dataset, partition) for partition in run.plan.partitions}
    workers = (w for w in core.state.workers.values() if w.trains and not held.isdisjoint(w.replicas))
    return frozenset(Place(w.name, device) for w in workers for device in range(w.most_devices))


def _busy(
    runs: Iterable[Run], places: frozenset[Place], since: float, until: float
) -> dict[Place, list[_Span]]:
    found: dict[Place, list[_Span]] = {}
    for run in runs:
        for each in busy(run, until, since=since):
            begin, end = max(each.started, since), min(each.ended, until)
            for device in each.devices:
                if begin < end and Place(each.worker, device) in places:
                    found.setdefault(Place(each.worker, device), []).append((begin, end))
    return found


def _merged(spans: Iterable[_Span]) -> list[_Span]:
    """Those that follow each other closely as one."""
    found: list[_Span] = []
    for begin, end in sorted(spans):
        if found and begin - found[-1][1] <= _APART_S:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def _without(spans: Iterable[_Span], own: Sequence[_Span]) -> Iterator[_Span]:
    """Spans but for what the run itself had, as between two tasks of others that were merged."""
    for begin, end in spans:
        at = begin
        for since, until in own:
            if until <= at or since >= end:
                continue
            if at < since:
                yield at, since
            at = max(at, until)
        if at < end:
            yield at, end
