"""Gangs: one model on two workers with a core each, hopping between them, and trained by both at once.

On a real local cluster, hopping leaves one of the two workers idle; a gang keeps both busy and sums gradients after
each batch. Batches are large for the network, so that computing outweighs communication: the gain depends on this ratio
and on the network, which here is the loopback interface. (With 500 rows and 2.5 MB of gradients in a batch, the
exchange used up the whole gain.) After a first run of each, which starts processes, the order is A B B A. Time runs
from the first start of a sub-epoch to the last commit, by the store's clock.
"""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.figure import Figure
from benchmarks.training import Perceptron, passes_taking, preprocessed, run_events
from cerebro import Experiment, Parallelism
from cerebro.contract.events import Event, TaskCommitted, TaskStarted

BAR = 0.8
"""Maximum of the gang's time divided by that with hopping."""
_ROWS, _BATCH, _WIDTH, _EPOCHS, _SUB_EPOCH_S = 16_000, 2_000, 512, 4, 3.0
"""Rows of both partitions; seconds of a sub-epoch on one worker."""
_TURNS = "ABBA"


def measure() -> dict[str, Any]:
    """Return the seconds of each turn, by side, and the sub-epochs of a gang's run."""
    passes = passes_taking(_SUB_EPOCH_S, rows=_ROWS // 2, batch=_BATCH, width=_WIDTH)
    with preprocessed("gangs", _ROWS, workers=2, devices=1) as experiment:
        sides = {"A": 1, "B": 2}
        for gang in sides.values():
            _fit(experiment, gang=gang, passes=1, epochs=1)
        seconds: dict[str, list[float]] = {"A": [], "B": []}
        sub_epochs: dict[str, int] = {}
        for side in _TURNS:
            events = _fit(experiment, gang=sides[side], passes=passes, epochs=_EPOCHS)
            seconds[side].append(_makespan(events))
            sub_epochs[side] = sum(isinstance(event, TaskCommitted) for event in events)
    return {"seconds": seconds, "sub_epochs": sub_epochs}


def benchmark() -> list[Figure]:
    """Measure the ratio."""
    found = measure()
    alone, gang = (statistics.median(found["seconds"][side]) for side in "AB")
    turns = "; ".join(
        f"{what} {', '.join(f'{each:.1f}' for each in found['seconds'][side])} s, {found['sub_epochs'][side]} "
        f"sub-epochs"
        for side, what in (("A", "hopping"), ("B", "as a gang"))
    )
    return [
        Figure(
            what="gangs: one model on two workers of one machine, trained by both at once, against hopping",
            measured=f"{gang:.1f} s, hopping {alone:.1f} s",
            ratio=gang / alone,
            bar=BAR,
            sense="at most",
            notes=(f"in turns: {turns}",),
        )
    ]


def _fit(experiment: Experiment, *, gang: int, passes: int, epochs: int) -> list[Event]:
    space: dict[str, Any] = {"lr": [0.0005], "width": [_WIDTH], "passes": [passes], "batch_size": [_BATCH]}
    result = experiment.run_fit(
        Perceptron(),
        space,
        epochs=epochs,
        metric="loss",
        mode="min",
        parallelism=Parallelism(gang=gang),
        progress=False,
    )
    return run_events(experiment, result.run)


def _makespan(events: list[Event]) -> float:
    first = min(event.time for event in events if isinstance(event, TaskStarted))
    return max(event.time for event in events if isinstance(event, TaskCommitted)) - first


def main() -> None:
    """Print the figures."""
    for figure in benchmark():
        print(figure)


if __name__ == "__main__":
    main()
