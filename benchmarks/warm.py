"""Warm processes: delay of the first sub-epochs of a first, a second and a changed fit.

A real local cluster of two workers runs three small fits of one experiment in sequence. The first one pays for an
interpreter, torch and the user's imports. The second one finds the processes of the first. The third one has changed
user code: it gets new processes, forked from ones with torch imported. The delay runs by the workers' clocks from an
agent's receipt of the task to the start of the sub-epoch's own work (`Timings.start_s`).
"""

from __future__ import annotations

from benchmarks.figure import Figure
from benchmarks.training import Perceptron, commits_by_worker, preprocessed, run_events

BAR = 10.0
"""Milliseconds: too short for any import."""
_GRID = {"lr": [0.001, 0.002], "width": [64], "passes": [1], "batch_size": [32]}
_ROWS = 400


def measure() -> dict[str, float]:
    """Return the milliseconds of each fit, the maximum over the workers."""
    with preprocessed("warm", _ROWS) as experiment:
        for note in ("", "", "changed"):
            spec = Perceptron()
            if note:
                spec.note = note  # type: ignore[attr-defined]
            experiment.run_fit(spec, _GRID, epochs=2, metric="loss", mode="min", progress=False)
        waits = []
        for run in ("fit-1", "fit-2", "fit-3"):
            commits = commits_by_worker(run_events(experiment, run)).values()
            waits.append(1000 * max(found[0].result.timings.start_s for found in commits))
    return {"first_ms": waits[0], "second_ms": waits[1], "changed_ms": waits[2]}


def benchmark() -> Figure:
    """Measure the delays."""
    found = measure()
    return Figure(
        what="start of a sub-epoch in a second fit of the same experiment within ten minutes: no import paid again",
        measured=f"{found['second_ms']:.1f} ms; first fit {found['first_ms']:.0f} ms",
        ratio=found["second_ms"],
        bar=BAR,
        sense="at most",
        measure="ms",
        notes=(
            f"with changed user code {found['changed_ms']:.0f} ms: its own imports, and those of its libraries that "
            "the platform does not import itself",
        ),
    )
