"""Gap: time on a worker between the end of a sub-epoch and the start of the next, with small models.

A real local cluster has two workers, 8 models, 10 epochs and sub-epochs of a tenth of a second. There are two measures,
both by the store's clock. The first runs from a sub-epoch's commit to the next start in the event log; an agent with a
queued sub-epoch sends both in one request. The second, stricter one has the bar: it runs from the end of training to
the next start of training, including saving, committing, loading and all messages between the processes.
"""

from __future__ import annotations

import statistics
from itertools import pairwise

from benchmarks.figure import Figure
from benchmarks.training import Perceptron, between_s, commits_by_worker, places, preprocessed, run_events
from cerebro.contract.events import Event, TaskCommitted, TaskStarted

BAR = 20.0
"""Milliseconds."""
_GRID = {"lr": [0.001, 0.002, 0.003, 0.005], "width": [64, 128], "passes": [4], "batch_size": [32]}
_ROWS, _EPOCHS = 1600, 10
_FIRST = 3
"""Omitted first sub-epochs of each worker, while the process imports torch."""


def measure() -> dict[str, float]:
    """Return the medians of both measures in milliseconds."""
    with preprocessed("gap", _ROWS) as experiment:
        experiment.run_fit(Perceptron(), _GRID, epochs=_EPOCHS, metric="loss", mode="min", progress=False)
        events = run_events(experiment, "fit-1")
    log = [1000 * gap for gap in gaps_s(events)[0]]
    whole_gaps: list[float] = []
    for commits in commits_by_worker(events).values():
        whole_gaps += [1000 * between_s(before, after) for before, after in pairwise(commits[_FIRST:])]
    results = [event.result.timings for event in events if isinstance(event, TaskCommitted)]
    return {
        "sub_epochs": len(results),
        "log_ms": statistics.median(log),
        "whole_ms": statistics.median(whole_gaps),
        "whole_p95_ms": statistics.quantiles(whole_gaps, n=20)[-1],
        "save_ms": 1000 * statistics.median(timings.save_s for timings in results),
        "load_ms": 1000 * statistics.median(timings.load_s for timings in results),
        "sub_epoch_ms": 1000 * statistics.median(timings.compute_s for timings in results),
        "ratio": statistics.median(whole_gaps) / BAR,
        "bar": BAR,
    }


def benchmark() -> Figure:
    """Measure the gap."""
    found = measure()
    return Figure(
        what="gap on a worker from the end of training to the next start of training, small models, median",
        measured=f"{found['whole_ms']:.1f} ms, of which save {found['save_ms']:.1f} ms, load {found['load_ms']:.1f} ms",
        ratio=found["whole_ms"],
        bar=BAR,
        sense="at most",
        measure="ms",
        notes=(
            f"from commit to next start in the event log {found['log_ms']:.1f} ms (median)",
            f"{found['sub_epochs']:.0f} sub-epochs of {found['sub_epoch_ms']:.0f} ms; 95 % of the gaps are under "
            f"{found['whole_p95_ms']:.1f} ms",
        ),
    )


def gaps_s(events: list[Event]) -> tuple[list[float], list[float]]:
    """Return the seconds from each commit to the next start on the same devices, and the last commit on each."""
    newest: dict[tuple[str, tuple[int, ...]], float] = {}
    gaps, placements = list[float](), places(events)
    for event in events:
        if not isinstance(event, TaskCommitted | TaskStarted):
            continue
        place = placements[event.task, event.attempt]
        if isinstance(event, TaskCommitted):
            newest[place] = event.time
        elif place in newest:
            gaps.append(event.time - newest[place])
    return gaps, list(newest.values())


def main() -> None:
    """Print the figures."""
    print(benchmark())


if __name__ == "__main__":
    main()
