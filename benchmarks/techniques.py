"""Techniques: cost of training a sub-epoch by two ranks, on a machine without GPUs.

Two real local clusters of one worker each take turns: one worker has one device with two threads, the other two devices
with one thread each, so one process and two ranks have the same cores. After a first run, which starts the processes,
all sides of a ratio take turns. Times are the workers' own (`Timings`), and gaps are measured like `gap`. The models
are perceptrons: large batches for the throughput, small ones for the gap, large layers for loading and saving.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from benchmarks.figure import Figure
from benchmarks.training import Perceptron, between_s, preprocessed, run_events
from cerebro import Experiment, Limits, Parallelism
from cerebro.contract.events import Event, TaskCommitted, TaskFailed
from cerebro.contract.tasks.results import Timings

DDP_BAR, FSDP_BAR, GAP_BAR, FILE_BAR, KILL_BAR_S = 0.85, 0.70, 2.0, 1.3, 1.0
_ROWS = 2048
_TURNS = ("single", "ddp", "fsdp", "fsdp", "ddp", "single")
_FIRST = 3
"""Omitted first sub-epochs of each run, while processes import torch and ranks meet."""
_Space = dict[str, list[Any]]
_COMPUTING: _Space = {"width": [1024], "batch_size": [512], "passes": [2], "lr": [0.001, 0.002]}
_SMALL: _Space = {"width": [64], "batch_size": [512], "passes": [1], "lr": [0.001, 0.002, 0.003, 0.004]}
_LARGE: _Space = {"width": [4950], "batch_size": [16], "passes": [1], "lr": [0.001]}
"""24.8 million parameters: 300 MB with Adam's state."""
_KILLS = 6
_LIMIT_S = 120.0


class Once(Perceptron):
    """Trains on one batch of its partition, so loading and saving dominate."""

    def train(
        self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Mapping[str, Any]
    ) -> dict[str, float]:
        """Train like `Perceptron` on the first batch."""
        return super().train(models, checkpoint, islice(dataloader, 1), hyperparams)


class Noted(Perceptron):
    """Each rank writes its process id to a folder and trains slowly."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def train(
        self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Mapping[str, Any]
    ) -> dict[str, float]:
        """Train like `Perceptron` with slow batches."""
        (self.folder / f"{dataloader.rank}").write_text(str(os.getpid()))
        return super().train(models, checkpoint, _slowly(dataloader), {**hyperparams, "passes": 1})


def _slowly(batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        time.sleep(0.05)
        yield batch


def measure() -> dict[str, Any]:
    """Return the seconds by side: computing, gaps, loading and saving a large state, and failures after kills."""
    found: dict[str, dict[str, list[float]]] = {
        name: {side: [] for side in ("single", "ddp", "fsdp")} for name in ("compute", "gap", "load", "save")
    }
    with (
        preprocessed("one-process", _ROWS, workers=1, devices=1) as one,
        preprocessed("two-ranks", _ROWS, workers=1, devices=2) as two,
    ):

        def fit(side: str, space: _Space, epochs: int, spec: Perceptron | None = None) -> list[Event]:
            return _fit(one if side == "single" else two, side, spec or Perceptron(), space, epochs)

        for side in ("single", "ddp", "fsdp"):
            fit(side, _SMALL, 1)
        for side in _TURNS:
            found["compute"][side] += [each.compute_s for each in _timings(fit(side, _COMPUTING, 5))]
        for side in _TURNS:
            found["gap"][side] += _gaps_s(fit(side, _SMALL, 8))
        for side in _TURNS:
            if side != "ddp":
                timings = _timings(fit(side, _LARGE, 7, Once()))
                found["load"][side] += [each.load_s for each in timings]
                found["save"][side] += [each.save_s for each in timings]
        kills = _kills_s(two)
    return {**found, "kills": kills}


def benchmark() -> list[Figure]:
    """Measure all ratios."""
    found = measure()
    middle = {
        name: {side: statistics.median(times) for side, times in found[name].items() if times}
        for name in ("compute", "gap", "load", "save")
    }
    figures = [
        Figure(
            what=f"techniques: throughput of two ranks by {side} against one process with the same cores",
            measured=f"{middle['compute'][side]:.2f} s a sub-epoch, one process {middle['compute']['single']:.2f} s",
            ratio=middle["compute"]["single"] / middle["compute"][side],
            bar=bar,
            sense="at least",
            notes=(f"{_named(found['compute'][side])}; one process {_named(found['compute']['single'])}",),
        )
        for side, bar in (("ddp", DDP_BAR), ("fsdp", FSDP_BAR))
    ]
    figures += [
        Figure(
            what=f"techniques: gap between two sub-epochs of two ranks by {side} against sub-epochs of one process, "
            f"warm",
            measured=f"{1000 * middle['gap'][side]:.1f} ms, one process {1000 * middle['gap']['single']:.1f} ms",
            ratio=middle["gap"][side] / middle["gap"]["single"],
            bar=GAP_BAR,
            sense="at most",
        )
        for side in ("ddp", "fsdp")
    ]
    figures += [
        Figure(
            what=f"techniques: {name} of 300 MB by two ranks of fsdp against one process",
            measured=f"{middle[name]['fsdp']:.2f} s, one process {middle[name]['single']:.2f} s",
            ratio=middle[name]["fsdp"] / middle[name]["single"],
            bar=FILE_BAR,
            sense="at most",
        )
        for name in ("load", "save")
    ]
    return [
        *figures,
        Figure(
            what="techniques: from kill -9 of a rank to the failure in the log, longest",
            measured=f"{max(found['kills']):.2f} s",
            ratio=max(found["kills"]),
            bar=KILL_BAR_S,
            sense="at most",
            measure="s",
            notes=(f"{len(found['kills'])} kills: {_named(found['kills'])}",),
        ),
    ]


def _fit(experiment: Experiment, side: str, spec: Perceptron, space: _Space, epochs: int) -> list[Event]:
    parallelism = None if side == "single" else Parallelism(techniques=[side], gpus=[2], trials="never")
    result = experiment.run_fit(
        spec, space, epochs=epochs, metric="loss", mode="min", progress=False, parallelism=parallelism
    )
    return run_events(experiment, result.run)


def _commits(events: Sequence[Event]) -> list[TaskCommitted]:
    return [event for event in events if isinstance(event, TaskCommitted)][_FIRST:]


def _timings(events: Sequence[Event]) -> list[Timings]:
    return [event.result.timings for event in _commits(events)]


def _gaps_s(events: Sequence[Event]) -> list[float]:
    return [between_s(before, after) for before, after in pairwise(_commits(events))]


def _kills_s(experiment: Experiment) -> list[float]:
    """Return the seconds from killing a rank to the failure, for both ranks in turn."""
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as folder, _fitting(experiment, Path(folder)):
        for number in range(_KILLS):
            pids = _awaited_pids(Path(folder))
            time.sleep(0.1 * (number % 3))
            began = time.time()
            os.kill(pids[number % 2], signal.SIGKILL)
            seconds.append(_failed_after(experiment, began) - began)
    return seconds


@contextmanager
def _fitting(experiment: Experiment, folder: Path) -> Iterator[None]:
    """Run a fit whose sub-epochs may fail repeatedly."""
    space: _Space = {"width": [64], "batch_size": [64], "lr": [0.001]}
    run = threading.Thread(
        target=lambda: experiment.run_fit(
            Noted(folder),
            space,
            epochs=2,
            metric="loss",
            mode="min",
            progress=False,
            parallelism=Parallelism(techniques=["ddp"], gpus=[2], trials="never"),
            limits=Limits(max_attempts=_KILLS + 2),
        )
    )
    run.start()
    yield
    run.join()


def _awaited_pids(folder: Path) -> list[int]:
    """Return the process ids of both ranks, and remove their notes."""
    deadline = time.monotonic() + _LIMIT_S
    notes = [folder / str(rank) for rank in (0, 1)]
    while not all(note.exists() and note.read_text() for note in notes):
        assert time.monotonic() < deadline, "the ranks never began"
        time.sleep(0.02)
    pids = [int(note.read_text()) for note in notes]
    for note in notes:
        note.unlink()
    return pids


def _failed_after(experiment: Experiment, began: float) -> float:
    deadline, after, kvs = time.monotonic() + _LIMIT_S, 0, experiment.connection.kvs
    while time.monotonic() < deadline:
        for event in kvs.events(experiment.name, after, wait_s=1.0):
            after = event.seq
            if isinstance(event, TaskFailed) and event.time >= began:
                return event.time
    raise TimeoutError("the failure was never told")


def _named(times: Sequence[float]) -> str:
    return f"{', '.join(f'{each:.2f}' for each in times)} s"


def main() -> None:
    """Print the figures."""
    for figure in benchmark():
        print(figure)


if __name__ == "__main__":
    main()
