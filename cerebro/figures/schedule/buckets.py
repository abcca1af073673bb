"""Spans of a long run merged into buckets of time, and the share of busy devices. Pure.

`cerebro.figures.schedule.drawing` calls `merged` for more than 2,000 bars, and `busy_share` for every schedule.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from cerebro.figures.schedule.spans import Span

_FEWEST = 4
"""Minimum number of buckets for each worker."""

_STRIP_POINTS = 400
"""Maximum number of points of the line of busy devices."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """A bucket of time on one worker.

    Attributes:
        start_s, seconds: its start and length.
        busy: share of the time with a sub-epoch, above 0 to 1.
        model: model that ran longest.
        models, sub_epochs: numbers of models and sub-epochs.
    """

    worker: str
    start_s: float
    seconds: float
    busy: float
    model: str
    models: int
    sub_epochs: int


def merged(
    spans: Sequence[Span], workers: Sequence[str], end_s: float, *, max_bars: int, begin_s: float = 0.0
) -> list[Bucket]:
    """Merge spans into about `max_bars` buckets of equal length, over all workers.

    A worker without a sub-epoch in a bucket's time gets no bucket. All spans must be between `begin_s` and `end_s`.
    """
    per_worker = max(_FEWEST, max_bars // max(1, len(workers)))
    seconds = (end_s - begin_s) / per_worker
    times: defaultdict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    sub_epochs: Counter[tuple[str, int]] = Counter()
    for span in spans:
        start_s, stop_s = span.start_s - begin_s, span.end_s - begin_s
        first, last = int(start_s / seconds), min(int(stop_s / seconds), per_worker - 1)
        for number in range(first, last + 1):
            inside = min(stop_s, (number + 1) * seconds) - max(start_s, number * seconds)
            if inside > 0:
                times[span.worker, number][span.model] += inside / span.sharing  # type: ignore[assignment]
                sub_epochs[span.worker, number] += 1
    return [
        Bucket(
            worker=worker,
            start_s=begin_s + number * seconds,
            seconds=seconds,
            busy=min(1.0, sum(shares.values()) / seconds),
            model=max(shares, key=lambda model: shares[model]),
            models=len(shares),
            sub_epochs=sub_epochs[worker, number],
        )
        for (worker, number), shares in sorted(times.items())
    ]


def busy_share(
    spans: Sequence[Span], workers: int, end_s: float, *, begin_s: float = 0.0
) -> list[tuple[float, float]]:
    """Return (time, share of devices that run sub-epochs) for each bucket, and the last share again at `end_s`.

    All spans must be between `begin_s` and `end_s`.
    """
    if not spans or not workers or end_s <= begin_s:
        return []
    count = min(_STRIP_POINTS, 4 * len(spans))
    seconds = (end_s - begin_s) / count
    # Changes in the number of busy devices at bucket edges, and the seconds of partly filled buckets.
    changes, partial = [0.0] * (count + 1), [0.0] * (count + 1)
    for span in spans:
        start_s, stop_s, share = span.start_s - begin_s, span.end_s - begin_s, 1 / span.sharing
        first, last = min(int(start_s / seconds), count - 1), min(int(stop_s / seconds), count - 1)
        if first == last:
            partial[first] += (stop_s - start_s) * share
            continue
        partial[first] += ((first + 1) * seconds - start_s) * share
        partial[last] += (stop_s - last * seconds) * share
        changes[first + 1] += share
        changes[last] -= share
    shares, running = [], 0.0
    for number in range(count):
        running += changes[number]
        busy = running * seconds + partial[number]
        shares.append((begin_s + number * seconds, min(1.0, max(0.0, busy / (seconds * workers)))))
    return [*shares, (end_s, shares[-1][1])]
