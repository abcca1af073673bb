"""Devices: one worker with two devices against two workers with one, with the same work and threads.

Two real local clusters take turns. Both train sub-epochs of the same rows and length: the single worker has one
partition, each of the two workers has one of the same size, and the single worker's models train on it twice as often.
After a first run on each cluster, which starts its processes, the order is A B B A A B. Throughput runs from the first
start of a sub-epoch to the last commit, by the store's clock. The gap on a device is measured like `gap`, on the
cluster with two devices.
"""

from __future__ import annotations

import statistics
from itertools import pairwise
from typing import Any

from benchmarks.figure import Figure
from benchmarks.training import (
    Perceptron,
    between_s,
    passes_taking,
    places,
    preprocessed,
    run_events,
)
from cerebro import Experiment
from cerebro.contract.events import Event, TaskCommitted, TaskStarted

BAR, GAP_BAR = 0.97, 20.0
"""Bars of the throughput ratio and of the gap in milliseconds."""
SUB_EPOCH_S = 0.25
_ROWS, _BATCH, _WIDTH, _MODELS, _EPOCHS = 800, 32, 128, 8, 6
"""Rows of a partition, and epochs of a model on two workers."""
_TURNS = "ABBAAB"
_FIRST = 3
"""Omitted first sub-epochs of each device, while the process imports torch."""


def measure() -> dict[str, Any]:
    """Return sub-epochs per second of each turn, by side, and the gaps on a device in seconds."""
    passes = passes_taking(SUB_EPOCH_S, rows=_ROWS, batch=_BATCH, width=_WIDTH)
    with (
        preprocessed("one-worker", _ROWS, workers=1, devices=2) as one,
        preprocessed("two-workers", 2 * _ROWS, workers=2, devices=1) as two,
    ):
        sides = {"A": (one, 2 * _EPOCHS), "B": (two, _EPOCHS)}
        for experiment, _ in sides.values():
            _fit(experiment, passes=1, epochs=2)
        rates: dict[str, list[float]] = {"A": [], "B": []}
        for side in _TURNS:
            experiment, epochs = sides[side]
            rates[side].append(rate(_fit(experiment, passes=passes, epochs=epochs)))
        small = _fit(one, passes=4, epochs=10)
    return {"rates": rates, "gaps_s": gaps_s(small)}


def benchmark() -> list[Figure]:
    """Measure throughput and gap."""
    found = measure()
    rates, gaps = found["rates"], [1000 * gap for gap in found["gaps_s"]]
    one, two = (statistics.median(rates[side]) for side in "AB")
    turns = "; ".join(
        f"{what} {', '.join(f'{rate:.2f}' for rate in rates[side])}"
        for side, what in (("A", "one worker with two devices"), ("B", "two workers"))
    )
    return [
        Figure(
            what="devices: throughput of one worker with 2 devices against two workers with 1, same work and threads",
            measured=f"{one:.2f} units/s, two workers {two:.2f} units/s",
            ratio=statistics.median(
                ours / theirs for ours, theirs in zip(rates["A"], rates["B"], strict=True)
            ),
            bar=BAR,
            sense="at least",
            notes=(f"sub-epochs per second, in turns: {turns}",),
        ),
        Figure(
            what="devices: gap on a device of two from the end of training to the next start, small models, median",
            measured=f"{statistics.median(gaps):.1f} ms",
            ratio=statistics.median(gaps),
            bar=GAP_BAR,
            sense="at most",
            measure="ms",
            notes=(f"95 % of {len(gaps)} gaps are under {statistics.quantiles(gaps, n=20)[-1]:.1f} ms",),
        ),
    ]


def gaps_s(events: list[Event]) -> list[float]:
    """Return the seconds from the end of training to the next start, on each device of each worker."""
    placements = places(events)
    commits: dict[tuple[str, tuple[int, ...]], list[TaskCommitted]] = {}
    for event in events:
        if isinstance(event, TaskCommitted):
            commits.setdefault(placements[event.task, event.attempt], []).append(event)
    return [
        between_s(before, after) for found in commits.values() for before, after in pairwise(found[_FIRST:])
    ]


def _fit(experiment: Experiment, *, passes: int, epochs: int) -> list[Event]:
    space: dict[str, Any] = {
        "lr": [0.0005 * (1 + model) for model in range(_MODELS)],
        "width": [_WIDTH],
        "passes": [passes],
        "batch_size": [_BATCH],
    }
    result = experiment.run_fit(Perceptron(), space, epochs=epochs, metric="loss", mode="min", progress=False)
    return run_events(experiment, result.run)


def rate(events: list[Event]) -> float:
    """Return sub-epochs per second, from the first start to the last commit."""
    first = min(event.time for event in events if isinstance(event, TaskStarted))
    commits = [event.time for event in events if isinstance(event, TaskCommitted)]
    return len(commits) / (max(commits) - first)


def main() -> None:
    """Print the figures."""
    for figure in benchmark():
        print(figure)


if __name__ == "__main__":
    main()
