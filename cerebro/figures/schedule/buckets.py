"""Spans of a long run put together by stretches of time; time without a sub-epoch stays what it was. Pure
arithmetic."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from cerebro.figures.schedule.spans import Span

_FEWEST = 4
"""Stretches per worker, however many workers there are."""

_STRIP_POINTS = 400
"""Of the line of busy devices."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """A stretch of time at one worker.

    Attributes:
        start_s, seconds: where it is. busy: share of it in which the worker ran a sub-epoch, above 0 to 1.
        model: the one that ran longest. models, sub-epochs: how many ran.
    """

    worker: str
    start_s: float
    seconds: float
    busy: float
    model: str
    models: int
    sub_epochs: int


def merged(
    spans: Sequence[Span], workers: Sequence[str], end_s: float, *, most: int, begin_s: float = 0.0
) -> list[Bucket]:
    """About `most` buckets of equal length over all workers; where a worker ran none throughout there is none. All
    spans lie between the two times."""
    per_worker = max(_FEWEST, most // max(1, len(workers)))
    seconds = (end_s - begin_s) / per_worker
    times: defaultdict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    sub_epochs: Counter[tuple[str, int]] = Counter()
    for span in spans:
        start_s, stop_s = span.start_s - begin_s, span.end_s - begin_s
        first, last = int(start_s / seconds), min(int(stop_s / seconds), per_worker - 1)
        for number in range(first, last + 1):
            inside = min(stop_s, (number + 1) * seconds) - max(start_s, number * seconds)
            if inside > 0:
                times[span.worker, number][span.model] += inside  # type: ignore[assignment]
                sub_epochs[span.worker, number] += 1
    return [
        Bucket(
            worker=worker,
            start_s=begin_s + number * seconds,
            seconds=seconds,
            busy=min(1.0, sum(found.values()) / seconds),
            model=max(found, key=lambda model: found[model]),
            models=len(found),
            sub_epochs=sub_epochs[worker, number],
        )
        for (worker, number), found in sorted(times.items())
    ]


def busy_share(
    spans: Sequence[Span], workers: int, end_s: float, *, begin_s: float = 0.0
) -> list[tuple[float, float]]:
    """(start of a stretch, share of the devices' time in it that they ran sub-epochs); the last one again, at its end.
    All spans lie between the two times."""
    if not spans or not workers or end_s <= begin_s:
        return []
    count = min(_STRIP_POINTS, 4 * len(spans))
    seconds = (end_s - begin_s) / count
    # Differences of the number of busy devices at the edges of stretches, and what partial stretches add.
    whole, partial = [0] * (count + 1), [0.0] * (count + 1)
    for span in spans:
        start_s, stop_s = span.start_s - begin_s, span.end_s - begin_s
        first, last = min(int(start_s / seconds), count - 1), min(int(stop_s / seconds), count - 1)
        if first == last:
            partial[first] += stop_s - start_s
            continue
        partial[first] += (first + 1) * seconds - start_s
        partial[last] += stop_s - last * seconds
        whole[first + 1] += 1
        whole[last] -= 1
    shares, running = [], 0
    for number in range(count):
        running += whole[number]
        busy = running * seconds + partial[number]
        shares.append((begin_s + number * seconds, min(1.0, max(0.0, busy / (seconds * workers)))))
    return [*shares, (end_s, shares[-1][1])]
