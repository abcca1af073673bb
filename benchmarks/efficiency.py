"""Efficiency: share of the workers' time spent on training, 8 models on 2 workers.

A real local cluster has one thread per worker and real sub-epochs of 2 s or more, calibrated at the start. Training
time is the computing time that sub-epochs report (the user's `train`, with its data). The makespan runs from the first
start to the last commit, so it includes the start of the workers' processes, which import torch.
"""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.figure import Figure
from benchmarks.training import WORKERS, Perceptron, passes_taking, preprocessed, run_events
from cerebro.contract.events import Event, TaskCommitted, TaskStarted

BAR = 0.95
SUB_EPOCH_S = 3.6
_ROWS, _BATCH, _EPOCHS, _WIDTH = 2000, 50, 6, 512
_RATES = (0.0001, 0.0002, 0.0003, 0.0005, 0.001, 0.002, 0.003, 0.005)


def measure() -> dict[str, float]:
    """Return training time, makespan and their ratio."""
    space: dict[str, Any] = {"lr": list(_RATES), "width": [_WIDTH], "batch_size": [_BATCH]}
    with preprocessed("efficiency", _ROWS) as experiment:
        passes = passes_taking(SUB_EPOCH_S, rows=_ROWS // WORKERS, batch=_BATCH, width=_WIDTH)
        space["passes"] = [passes]
        experiment.run_fit(Perceptron(), space, epochs=_EPOCHS, metric="loss", mode="min", progress=False)
        events = run_events(experiment, "fit-1")
    sub_epochs = [event.result.timings for event in events if isinstance(event, TaskCommitted)]
    first = min(event.time for event in events if isinstance(event, TaskStarted))
    makespan = max(event.time for event in events if isinstance(event, TaskCommitted)) - first
    training = sum(timings.compute_s for timings in sub_epochs)
    return {
        "sub_epochs": len(sub_epochs),
        "shortest_sub_epoch_s": min(timings.compute_s for timings in sub_epochs),
        "median_sub_epoch_s": statistics.median(timings.compute_s for timings in sub_epochs),
        "first_training_s": _first_training_s(events, first),
        "training_s": training,
        "makespan_s": makespan,
        "ratio": training / (WORKERS * makespan),
        "bar": BAR,
    }


def benchmark() -> Figure:
    """Measure the efficiency."""
    found = measure()
    return Figure(
        what=f"efficiency: training time / (workers x makespan), {len(_RATES)} models x {WORKERS} workers",
        measured=f"{found['training_s']:.1f} s / ({WORKERS} x {found['makespan_s']:.1f} s)",
        ratio=found["ratio"],
        bar=BAR,
        sense="at least",
        notes=(
            f"{found['sub_epochs']:.0f} sub-epochs of {found['median_sub_epoch_s']:.1f} s (median, the shortest "
            f"{found['shortest_sub_epoch_s']:.1f} s); the first training began {found['first_training_s']:.1f} s "
            f"after the "
            "first start, because the workers' processes start and import torch then",
        ),
    )


def _first_training_s(events: list[Event], first: float) -> float:
    """Seconds from the first start to the first moment of training."""
    return min(
        event.time - event.result.timings.save_s - event.result.timings.compute_s - first
        for event in events
        if isinstance(event, TaskCommitted)
    )


def main() -> None:
    """Print the figures."""
    print(benchmark())


if __name__ == "__main__":
    main()
