"""Live parallel plans: technique, devices and order chosen together, against current practice.

A real local cluster has two workers with two devices each, and nine models, one four times as long. After a short run
of each side, which starts processes: each sub-epoch on one device; each sub-epoch on both devices of its worker, as in
current practice; and twice with both techniques named, so that trials measure them and plans choose. Trial results are
kept, so only the first such run needs trials. Sub-epochs wait instead of computing: a batch has a constant part and a
part by the rank's rows, so two devices take 0.65 of the time of one. So the figures show that plans are chosen and
followed, not training times. Time runs from the first start of a sub-epoch to the last commit.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from typing import Any

import torch
from torch.nn import functional

from benchmarks.figure import Figure
from benchmarks.training import Perceptron, preprocessed, run_events
from cerebro import Experiment, Parallelism
from cerebro.contract.events import Event, SchedulePlanned, TaskAssigned, TaskCommitted, TaskStarted
from cerebro.state import TaskKey

BAR = 0.95
"""Maximum of the time divided by the better of the two other sides."""
_ROWS, _BATCH, _EPOCHS = 2_000, 50, 4
"""Rows of both partitions."""
_BATCH_S, _ROW_S = 0.022, 0.00105
"""Seconds of a batch, constant and per row."""
_LONG, _SHORT_MODELS = 4, 8
_SIDES: dict[str, dict[str, Any]] = {
    "one device": {"techniques": ["single"]},
    "all devices": {"techniques": ["ddp"], "gpus": [2]},
    "chosen": {"techniques": ["single", "ddp"]},
}


class Waiting(Perceptron):
    """Trains a small network, and waits for the time of a larger one."""

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        """Make one pass over the partition."""
        (network,) = models
        optimizer = torch.optim.SGD(network.parameters(), lr=hyperparams["lr"])
        total = 0.0
        for inputs, labels in dataloader:
            loss = functional.cross_entropy(network(inputs), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += loss.item() * len(labels)
            time.sleep(hyperparams["length"] * (_BATCH_S + _ROW_S * len(labels)))
        return {"loss": total / dataloader.num_rows}


def measure() -> dict[str, Any]:
    """Return the seconds of each turn, by side, and the parallel plans of each side's last run."""
    with preprocessed("parallel_plans", _ROWS, workers=2, devices=2) as experiment:
        for side in _SIDES.values():
            _fit(experiment, epochs=1, long=1, **side)
        seconds: dict[str, list[float]] = {name: [] for name in _SIDES}
        parallel_plans: dict[str, Counter[tuple[str, str]]] = {}
        planned = 0
        for name in (*_SIDES, "chosen"):
            events = _fit(experiment, epochs=_EPOCHS, long=_LONG, **_SIDES[name])
            seconds[name].append(_makespan(events))
            parallel_plans[name] = _parallel_plans(events)
            if name == "chosen":
                planned += sum(isinstance(event, SchedulePlanned) for event in events)
    return {"seconds": seconds, "parallel_plans": parallel_plans, "planned": planned}


def benchmark() -> list[Figure]:
    """Measure the ratio."""
    found = measure()
    medians = {name: statistics.median(each) for name, each in found["seconds"].items()}
    other = min(medians["one device"], medians["all devices"])
    turns = "; ".join(
        f"{name} {', '.join(f'{each:.1f}' for each in found['seconds'][name])} s: "
        + ", ".join(
            f"{count} sub-epochs of the {what} by {parallel_plan}"
            for (what, parallel_plan), count in sorted(found["parallel_plans"][name].items())
        )
        for name in _SIDES
    )
    return [
        Figure(
            what="ways: nine models on two workers of two devices, technique and devices chosen, over the better "
            "of one device and all devices for each sub-epoch",
            measured=f"{medians['chosen']:.1f} s, one device {medians['one device']:.1f} s, all devices "
            f"{medians['all devices']:.1f} s",
            ratio=medians["chosen"] / other,
            bar=BAR,
            sense="at most",
            notes=(f"in turns: {turns}", f"plans: {found['planned']}", "computing is waited for"),
        )
    ]


def _fit(experiment: Experiment, *, epochs: int, long: int, **named: Any) -> list[Event]:
    space: list[dict[str, Any]] = [
        {"lr": 0.01, "width": 16, "passes": 1, "batch_size": _BATCH, "length": length}
        for length in (long, *[1] * _SHORT_MODELS)
    ]
    result = experiment.run_fit(
        Waiting(),
        space,
        epochs=epochs,
        metric="loss",
        mode="min",
        progress=False,
        parallelism=Parallelism(**named),
    )
    return run_events(experiment, result.run)


def _parallel_plans(events: list[Event]) -> Counter[tuple[str, str]]:
    """Count the sub-epochs of the long model and of the short ones by parallel plan."""
    found: Counter[tuple[str, str]] = Counter()
    plans = {(e.task, e.attempt): e.parallel_plan for e in events if isinstance(e, TaskAssigned)}
    for event in events:
        if isinstance(event, TaskCommitted) and TaskKey.parse(event.task).kind == "train":
            parallel_plan = plans[event.task, event.attempt]
            model = "long model" if TaskKey.parse(event.task).model == "m00" else "short ones"
            found[model, parallel_plan.label if parallel_plan is not None else "single"] += 1
    return found


def _makespan(events: list[Event]) -> float:
    sub_epochs = [e for e in events if isinstance(e, TaskStarted | TaskCommitted) and "/train/" in e.task]
    first = min(event.time for event in sub_epochs if isinstance(event, TaskStarted))
    return max(event.time for event in sub_epochs if isinstance(event, TaskCommitted)) - first


def main() -> None:
    """Print the figures."""
    for figure in benchmark():
        print(figure)


if __name__ == "__main__":
    main()
