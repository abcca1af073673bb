"""What a schedule shows of a stretch of its time. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cerebro.figures.schedule.spans import Landmarks, Span


def cut_off(spans: Iterable[Span], since_s: float, until_s: float) -> list[Span]:
    """The parts of spans between two times."""
    return [
        replace(span, start_s=max(span.start_s, since_s), end_s=min(span.end_s, until_s))
        for span in spans
        if span.start_s < until_s and span.end_s > since_s
    ]


def within(found: Landmarks, since_s: float, until_s: float) -> Landmarks:
    """What of them lies between two times. The bound is of all of the run, so it is left out; so is idle time."""
    return Landmarks(
        window=(since_s, until_s),
        now_s=min(found.now_s, until_s),
        breaks=tuple(
            (max(begin, since_s), end) for begin, end in found.breaks if begin < until_s and end > since_s
        ),
        epochs=tuple((epoch, at) for epoch, at in found.epochs if since_s <= at <= until_s),
        taken=tuple(
            replace(bar, start_s=max(bar.start_s, since_s), end_s=min(bar.end_s, until_s))
            for bar in found.taken
            if bar.start_s < until_s and bar.end_s > since_s
        ),
        absences=tuple(
            away
            for away in found.absences
            if away.start_s < until_s and (away.end_s is None or away.end_s > since_s)
        ),
    )
