"""Histories as a page draws them: so many equal stretches of time, a value for each. Pure."""

from __future__ import annotations

from statistics import fmean

SLOTS = 60
"""Of a history."""


def slots(values: list[tuple[float, float]], begin: float, end: float) -> tuple[float | None, ...]:
    """Means of (time, value) over `SLOTS` equal stretches of time; None where there is no value."""
    found: list[list[float]] = [[] for _ in range(SLOTS)]
    for time, value in values:
        if begin <= time < end:
            found[int((time - begin) / (end - begin) * SLOTS)].append(value)
    return tuple(fmean(each) if each else None for each in found)


def occupied(spans: list[tuple[float, float]], begin: float, end: float) -> tuple[float, ...]:
    """The share of each of `SLOTS` stretches that (begin, end) spans cover; 1 at most, should they overlap."""
    width = (end - begin) / SLOTS
    found = [0.0] * SLOTS
    for started, ended in spans:
        first = max(0, int((started - begin) / width))
        for slot in range(first, min(SLOTS, int((ended - begin) / width) + 1)):
            low = begin + slot * width
            found[slot] += max(0.0, min(ended, low + width) - max(started, low)) / width
    return tuple(min(1.0, share) for share in found)
