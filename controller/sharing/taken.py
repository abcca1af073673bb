"""Device time that other runs took from a run, noted in its log. Pure: states in, steps out.

With the notes, a reader of that log alone sees no false idle time. Notes are written about once a minute,
more often at first, before an epoch or the run ends, and before another run that used its devices ends,
because its log may be unloaded after that. A restarted controller finds the time of the last note in the
logs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from cerebro.contract.events import DevicesTaken, EpochCompleted, RunFinished
from cerebro.contract.rest import api
from cerebro.contract.runs import FitPlan, TakenSpan
from cerebro.state import Run
from cerebro.state.reports.timeline import busy
from controller.decisions.core import Core
from controller.decisions.decide import Step
from controller.sharing.arbiter import DeviceSlot, RunRef

EVERY_S = 60.0
"""Seconds between two notes, plus one for each device above 60, to limit their share of a large log."""

_FIRST_S = 10.0

_INTERVAL_S = 1.0
"""Maximum gap between two tasks of others that count as one use. More recent use need not be noted before an
epoch or run ends.
"""

_Span = tuple[float, float]


class Write(NamedTuple):
    """Steps for one experiment."""

    core: Core
    steps: list[Step]


class TakenTime:
    """Decides when to write notes. Owned by a loop; not thread-safe."""

    def __init__(self) -> None:
        self._next: dict[RunRef, float] = {}
        """Time of each run's next regular note."""
        self._noted_causes: dict[RunRef, tuple[tuple[int, ...], float]] = {}
        """The epochs, or end, that caused a run's last note, and its time."""

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
        """Yield a run's steps, with the notes that must come first.

        A run about to complete an epoch or to end gets its note first, and decides again with it. A run about
        to end also causes notes for the others.

        Args:
            open_runs: all attended runs.
            now: time of a new event, in seconds.
            is_whole: True if all logs are loaded. Otherwise regular notes wait, because a noted time range is
                final.
        """
        other_runs = [(other, each) for other, each in open_runs if each is not run]
        judged = _judgements(steps)
        note = None
        if other_runs and _has_begun(run):
            if judged:
                is_due = now - _since(run) >= _INTERVAL_S and self._should_report(core, run, judged, now)
            else:
                is_due = is_whole and self._is_due(core, run, now)
            if is_due:
                note = _note(core, run, [each for _, each in other_runs], now)
        if any(isinstance(event, RunFinished) for event in judged):
            for other, each in other_runs:
                # An ended run is not read again.
                if _has_begun(each) and _note(other, each, [run], now) is not None:
                    theirs = [one for _, one in other_runs if one is not each]
                    if other_note := _note(other, each, [run, *theirs], now):
                        yield Write(other, [other_note])
        if note is None:
            yield Write(core, [*steps])
        else:
            unjudged = (s for s in steps if not isinstance(s, api.Note) or s.event not in judged)
            yield Write(core, [note, *unjudged])

    def _should_report(
        self, core: Core, run: Run, judged: Sequence[RunFinished | EpochCompleted], now: float
    ) -> bool:
        """True if the run needs a note before it completes an epoch or ends.

        False after a recent note for the same reason: if decisions are slower than the allowed gap, notes
        would repeat forever.
        """
        ref = RunRef(core.state.name, run.id)
        what = tuple(event.epoch if isinstance(event, EpochCompleted) else 0 for event in judged)
        told_for, at = self._noted_causes.get(ref, ((), 0.0))
        if told_for == what and now - at < EVERY_S:
            return False
        self._noted_causes[ref] = what, now
        return True

    def _is_due(self, core: Core, run: Run, now: float) -> bool:
        ref = RunRef(core.state.name, run.id)
        if now < self._next.setdefault(ref, _since(run) + _FIRST_S):
            return False
        # More often at first: a minute is a large part of a short run.
        every_s = min(max(EVERY_S, len(_slots(core, run))), max(_FIRST_S, (_since(run) - run.zero) / 4))
        is_due = now >= _since(run) + every_s
        self._next[ref] = (now if is_due else _since(run)) + every_s
        return is_due


def _judgements(steps: Sequence[Step]) -> list[RunFinished | EpochCompleted]:
    events = (step.event for step in steps if isinstance(step, api.Note))
    return [event for event in events if isinstance(event, RunFinished | EpochCompleted)]


def _has_begun(run: Run) -> bool:
    return isinstance(run.plan, FitPlan) and math.isfinite(run.zero)


def _since(run: Run) -> float:
    """Return the time until which other runs' use is noted or irrelevant."""
    return max(run.device_time.taken_until, run.zero)


def _note(core: Core, run: Run, other_runs: Iterable[Run], now: float) -> Step | None:
    spans = taken(run, other_runs, _slots(core, run), _since(run), now)
    return api.Note(event=DevicesTaken(run=run.id, until=now, spans=tuple(spans))) if spans else None


def taken(
    run: Run, other_runs: Iterable[Run], slots: frozenset[DeviceSlot], since: float, until: float
) -> list[TakenSpan]:
    """Return other runs' use of these devices between two times, sorted by end."""
    own_spans, theirs = _busy([run], slots, since, until), _busy(other_runs, slots, since, until)
    found = [
        TakenSpan(slot.worker, slot.device, *span)
        for slot, spans in theirs.items()
        for span in _without(_merged(spans), sorted(own_spans.get(slot, ())))
    ]
    return sorted(found, key=lambda span: (span.until, span.worker, span.device))


def _slots(core: Core, run: Run) -> frozenset[DeviceSlot]:
    """Return the devices that could train the run."""
    assert isinstance(run.plan, FitPlan)
    held = {(run.plan.dataset, partition) for partition in run.plan.partitions}
    workers = (w for w in core.state.workers.values() if w.trains and not held.isdisjoint(w.replicas))
    return frozenset(DeviceSlot(w.name, device) for w in workers for device in range(w.most_devices))


def _busy(
    runs: Iterable[Run], slots: frozenset[DeviceSlot], since: float, until: float
) -> dict[DeviceSlot, list[_Span]]:
    found: dict[DeviceSlot, list[_Span]] = {}
    for run in runs:
        for each in busy(run, until, since=since):
            begin, end = max(each.started, since), min(each.ended, until)
            for device in each.devices:
                if begin < end and DeviceSlot(each.worker, device) in slots:
                    found.setdefault(DeviceSlot(each.worker, device), []).append((begin, end))
    return found


def _merged(spans: Iterable[_Span]) -> list[_Span]:
    """Merge spans that follow each other closely."""
    found: list[_Span] = []
    for begin, end in sorted(spans):
        if found and begin - found[-1][1] <= _INTERVAL_S:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def _without(spans: Iterable[_Span], own_spans: Sequence[_Span]) -> Iterator[_Span]:
    """Yield the spans without the run's own time, which merging may have included."""
    for begin, end in spans:
        at = begin
        for since, until in own_spans:
            if until <= at or since >= end:
                continue
            if at < since:
                yield at, since
            at = max(at, until)
        if at < end:
            yield at, end
