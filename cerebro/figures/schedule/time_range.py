"""Parts of a schedule within a time range. Pure.

`drawing` cuts spans with `cut_off`; `dispatcher.schedule.figure` cuts landmarks with `within`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cerebro.figures.schedule.spans import Landmarks, Span


def cut_off(spans: Iterable[Span], since_s: float, until_s: float) -> list[Span]:
    """Return the parts of spans within a time range."""
    return [
        replace(span, start_s=max(span.start_s, since_s), end_s=min(span.end_s, until_s))
        for span in spans
        if span.start_s < until_s and span.end_s > since_s
    ]


def within(landmarks: Landmarks, since_s: float, until_s: float) -> Landmarks:
    """Return the landmarks within a time range.

    The lower bound and the idle time are of the whole run, so they are omitted.
    """
    return Landmarks(
        window=(since_s, until_s),
        now_s=min(landmarks.now_s, until_s),
        breaks=tuple(
            (max(begin, since_s), end) for begin, end in landmarks.breaks if begin < until_s and end > since_s
        ),
        epochs=tuple((epoch, at) for epoch, at in landmarks.epochs if since_s <= at <= until_s),
        taken=tuple(
            replace(bar, start_s=max(bar.start_s, since_s), end_s=min(bar.end_s, until_s))
            for bar in landmarks.taken
            if bar.start_s < until_s and bar.end_s > since_s
        ),
        absences=tuple(
            absence
            for absence in landmarks.absences
            if absence.start_s < until_s and (absence.end_s is None or absence.end_s > since_s)
        ),
    )
