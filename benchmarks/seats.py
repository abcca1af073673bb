"""Seats: four units that share each device in turns against one after the other, on the same devices.

Two real local clusters of one worker with two devices of a thread each, of which one rests while the other works. Both
train the same models; on one of them four units sit at each device, with quanta far shorter than units, so that each
unit has many turns. The runs alternate, in the order A B B A, after one on each cluster that starts its processes.
Throughput counts from the first start of a unit to the last commit, by the store's clock; it is that of whole units, so
what turns cost and what they hide (loading, saving and the messages between two units) are both in it.

A turn is from the end of one unit's last batch to the beginning of the next one's first batch, as user code sees it in
two processes. The two runs' weights are compared file by file.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from benchmarks.devices import rate
from benchmarks.figure import Figure
from benchmarks.training import Perceptron, passes_taking, places, preprocessed, run_events
from cerebro import Experiment
from cerebro.contract.events import Event, TaskCommitted

BAR, TURN_BAR = 0.97, 50.0
"""Of the throughput; of a turn in milliseconds."""
DEVICES, SEATS, QUANTUM_S, UNIT_S = 2, 4, 0.1, 0.6
"""Devices of one thread each."""
_ROWS, _BATCH, _WIDTH, _MODELS, _EPOCHS = 800, 32, 128, 16, 1
_RATES = [0.0005 * (1 + model) for model in range(_MODELS)]
_TURNS = "ABBA"


class Noted(Perceptron):
    """Notes when each batch began and ended."""

    def train(
        self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Mapping[str, Any]
    ) -> dict[str, float]:
        """As a `Perceptron`, by plain steps."""
        (network,) = models
        noted: list[str] = []
        loss = torch.zeros(())
        for _ in range(hyperparams["passes"]):
            for inputs, labels in dataloader:
                began = time.monotonic()
                loss = functional.cross_entropy(network(inputs), labels)
                weights = list(network.parameters())
                for weight, slope in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                    weight.data.sub_(slope, alpha=hyperparams["lr"])
                noted.append(f"{hyperparams['lr']} {began} {time.monotonic()}\n")
        with Path(hyperparams["notes"]).open("a") as file:
            file.writelines(noted)
        return {"loss": loss.item()}


def measure() -> dict[str, Any]:
    """Units per second of each run by side, seconds of each turn, and whether the weights are equal."""
    size = {"rows": _ROWS, "batch": _BATCH, "width": _WIDTH}
    passes_taking(UNIT_S, **size)  # the first use of an optimizer imports for seconds
    passes = passes_taking(UNIT_S, **size)
    shared = {"CEREBRO_SEATS": str(SEATS), "CEREBRO_QUANTUM_S": str(QUANTUM_S)}
    with (
        tempfile.TemporaryDirectory(prefix="cerebro-bench-") as folder,
        preprocessed("seats", _ROWS, workers=1, devices=DEVICES, variables=shared) as seats,
        preprocessed("one-seat", _ROWS, workers=1, devices=DEVICES) as one,
    ):
        sides = {"A": seats, "B": one}
        for experiment in sides.values():
            _fit(experiment, passes=1)
        found: dict[str, list[list[Event]]] = {"A": [], "B": []}
        for side in _TURNS:
            found[side].append(_fit(sides[side], passes=passes))
        notes = Path(folder) / "notes"
        # In one file, one after the other: its name is a hyper-parameter, which checkpoints hold.
        noted = _fit(seats, Noted(), passes=passes, notes=str(notes))
        turns = turns_s(notes.read_text(), _devices(noted))
        plain = _fit(one, Noted(), passes=passes, notes=str(notes))
    rates = {side: [rate(events) for events in runs] for side, runs in found.items()}
    return {"rates": rates, "turns_s": turns, "is_equal": _checksums(noted) == _checksums(plain)}


def benchmark() -> list[Figure]:
    """`measure` as lines of the table."""
    found = measure()
    rates, turns = found["rates"], [1000 * turn for turn in found["turns_s"]]
    ours, theirs = (statistics.median(rates[side]) for side in "AB")
    return [
        Figure(
            what=f"seats: throughput of devices that {SEATS} units each share in turns against one after the other",
            measured=f"{ours:.3f} units/s, one after the other {theirs:.3f} units/s",
            ratio=statistics.median(a / b for a, b in zip(rates["A"], rates["B"], strict=True)),
            bar=BAR,
            sense="at least",
            notes=(f"units of {UNIT_S} s, first quanta of {QUANTUM_S} s",),
        ),
        Figure(
            what="seats: a turn, from the end of a batch to the beginning of another unit's, median",
            measured=f"{statistics.median(turns):.1f} ms",
            ratio=statistics.median(turns),
            bar=TURN_BAR,
            sense="at most",
            measure="ms",
            notes=(f"95 % of {len(turns)} turns are under {statistics.quantiles(turns, n=20)[-1]:.1f} ms",),
        ),
        Figure(
            what="seats: weights of units that took turns are those of units one after the other, to the bit",
            measured="equal" if found["is_equal"] else "not equal",
            ratio=float(found["is_equal"]),
            bar=1.0,
            sense="at least",
        ),
    ]


def turns_s(notes: str, devices: Mapping[str, int]) -> list[float]:
    """From the end of each batch to the beginning of the next one on its device, where that is another model's.

    Args:
        devices: learning rate of a model -> the device at which it sat.
    """
    lines = (line.split() for line in notes.splitlines())
    batches = sorted((devices[rate], float(began), float(ended), rate) for rate, began, ended in lines)
    return [
        after[1] - before[2]
        for before, after in pairwise(batches)
        if (before[0], before[3] != after[3]) == (after[0], True)
    ]


def _devices(events: list[Event]) -> dict[str, int]:
    seats = {task: taken for (task, _), (_, taken) in places(events).items()}
    return {
        str(rate): seats[task][0] % DEVICES
        for task in seats
        for number, rate in enumerate(_RATES)
        if f"/train/m{number:02}/" in task
    }


def _checksums(events: list[Event]) -> dict[str, str]:
    """Unit -> its checkpoint's checksum."""
    commits = (event for event in events if isinstance(event, TaskCommitted))
    return {
        event.task.partition("/")[2]: event.result.checkpoint.checksum
        for event in commits
        if event.result.checkpoint is not None
    }


def _fit(
    experiment: Experiment, spec: Perceptron | None = None, *, passes: int, notes: str = ""
) -> list[Event]:
    space: dict[str, Any] = {
        "lr": _RATES,
        "width": [_WIDTH],
        "passes": [passes],
        "batch_size": [_BATCH],
        **({"notes": [notes]} if notes else {}),
    }
    result = experiment.run_fit(
        spec or Perceptron(), space, epochs=_EPOCHS, metric="loss", mode="min", progress=False
    )
    return run_events(experiment, result.run)


def main() -> None:
    """Print the figures."""
    for figure in benchmark():
        print(figure)


if __name__ == "__main__":
    main()
