"""Savepoints: the training lost when processes and workers end at random batches.

A real local cluster has two workers, 5 models and one epoch: 10 sub-epochs of 500 batches, with a savepoint each
second. During the run, the process of user code gets SIGKILL 50 times and a worker gets SIGTERM 20 times, each at a
random batch of a running sub-epoch. User code records each batch's start, so that repeated batches are counted and
timed. The weights are then compared, bit for bit, with a replay: uninterrupted training in this process.

If two attempts die on one savepoint, the third restarts from the beginning, so a kill waits until its attempt has
reported another savepoint.

The cost of savepoints is measured on a state of 100 MB, and counted over sub-epochs of a minute to four hours by a
worker's clock (`Timer`).
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.figure import Figure
from benchmarks.training import CLASSES, FEATURES, preprocessed, run_events
from cerebro import Experiment, Limits, SubEpochSpec
from cerebro.client.connection import connect
from cerebro.client.replay import replay
from cerebro.contract.events import (
    Event,
    SubEpochSaved,
    TaskAssigned,
    TaskCommitted,
    TaskFailed,
    TaskRevoked,
    TaskStarted,
)
from cerebro.state import ExperimentState
from cerebro.worker.training.checkpoints import checkpoint as checkpoints
from cerebro.worker.training.checkpoints.savepoints import Savepoints, Timer
from cerebro.worker.training.trainee import Trainee

KILLS, TERMINATIONS = 50, 20
_MODELS, _WORKERS, _BATCHES, _SIZE = 5, 2, 500, 8
_INTERVAL_S, _PAUSE_S = 1.0, 0.025
_PAUSE = "CEREBRO_BENCH_PAUSE_S"
"""Set for the workers only, not for the replay in this process."""
_PER_SUB_EPOCH = 12
"""Batches at which attempts at a sub-epoch may end: more than needed, because some precede a savepoint."""
_BATCH = "<qd"
"""Number of a batch in its model's training, and its start."""
_STATE_BYTES = 100 << 20
_SUB_EPOCHS_S = (60.0, 119.0, 130.0, 600.0, 3600.0, 4 * 3600.0)


class Diary(SubEpochSpec):
    """Two layers, dropout and Adam; records each batch's start with process and time."""

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[nn.Module]:
        """Create one network."""
        layers = nn.Linear(FEATURES, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, CLASSES)
        return [nn.Sequential(*layers)]

    def train(
        self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Mapping[str, Any]
    ) -> dict[str, float]:
        """Make one pass."""
        (network,) = models
        optimizer = torch.optim.Adam(network.parameters(), lr=hyperparams["lr"])
        checkpoint.track(optimizer=optimizer)
        total = dataloader.progress({"loss": 0.0})
        pause_s = float(os.environ.get(_PAUSE, "0"))
        name = f"{os.getpid()}-{hyperparams['number']}-{dataloader.sub_epoch}"
        with Path(hyperparams["diary"], name).open("ab", buffering=0) as diary:
            dataloader.savepoint()  # the open file is no state to save
            for inputs, labels in dataloader:
                diary.write(struct.pack(_BATCH, dataloader.step, time.monotonic()))
                time.sleep(pause_s)
                loss = functional.cross_entropy(network(inputs), labels)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                total["loss"] += loss.item()
        return {"loss": total["loss"]}


@dataclass(frozen=True, kw_only=True)
class Interruption:
    """The interrupted attempt, with its time and current batch."""

    is_kill: bool
    task: str
    attempt: int
    batch: int
    at: float
    begun: dict[int, float]
    """Batch -> start in this attempt."""


class Interrupter:
    """Ends processes of an experiment's fit during training, in a thread."""

    def __init__(self, experiment: Experiment, diary: Path) -> None:
        self._experiment, self._diary = experiment, diary
        self._left = [True] * KILLS + [False] * TERMINATIONS
        random.Random(0).shuffle(self._left)
        self._finished = threading.Event()
        self.done: list[Interruption] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Work until the context ends."""
        threads = [threading.Thread(target=self._run, args=(f"worker-{n}",)) for n in range(_WORKERS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._finished.set()
            for thread in threads:
                thread.join()

    def _run(self, worker: str) -> None:
        while not self._finished.wait(0.05) and self._left:
            with suppress(LookupError, OSError, ValueError):
                self._interrupt(worker)

    def _interrupt(self, worker: str) -> None:
        """Wait for an attempt of this worker with a reported savepoint, and end it at a random later batch."""
        events = run_events(self._experiment, "fit-1")
        started, saved = _open(events, worker)
        path, begun = self._newest(started)
        target = next((batch for batch in self._targets(started.task) if batch > saved), _BATCHES)
        while max(begun) % _BATCHES < target:
            if self._finished.wait(0.005):
                return
            before, begun = begun, self._read(path)
            if begun == before and time.monotonic() > max(begun.values()) + 5:
                return  # the attempt is over
        is_kill = self._left.pop()
        pid = int(path.name.split("-")[0])
        if not is_kill:
            pid = next(
                w.record.pid for w in self._experiment.connection.kvs.workers() if w.record.worker == worker
            )
        os.kill(pid, signal.SIGKILL if is_kill else signal.SIGTERM)
        at, begun = time.monotonic(), self._read(path)
        batch = max(begun) % _BATCHES
        self.done.append(
            Interruption(
                is_kill=is_kill,
                task=started.task,
                attempt=started.attempt,
                batch=batch,
                at=at,
                begun={step % _BATCHES: when for step, when in begun.items()},
            )
        )
        while (end := self._end(started)) is None:
            if self._finished.wait(0.05):
                return
        if isinstance(end, TaskCommitted):
            self._left.append(is_kill)  # too late: return it to the list

    def _targets(self, task: str) -> list[int]:
        """Return the random batches, in order, that end attempts at a sub-epoch."""
        return sorted(random.Random(task).sample(range(1, _BATCHES), _PER_SUB_EPOCH))

    def _end(self, started: TaskStarted) -> Event | None:
        """Return the event that ended the attempt."""
        return next(
            (
                event
                for event in run_events(self._experiment, "fit-1")
                if isinstance(event, TaskFailed | TaskRevoked | TaskCommitted)
                and (event.task, event.attempt) == (started.task, started.attempt)
            ),
            None,
        )

    def _newest(self, started: TaskStarted) -> tuple[Path, dict[int, float]]:
        number = int(started.task.split("/")[2].removeprefix("m"))
        found = max(self._diary.glob(f"*-{number}-*"), key=lambda path: path.stat().st_mtime)
        return found, self._read(found)

    def _read(self, path: Path) -> dict[int, float]:
        data = path.read_bytes()
        size = struct.calcsize(_BATCH)
        found = dict(struct.iter_unpack(_BATCH, data[: len(data) // size * size]))
        if not found:
            raise LookupError(path)
        return found


def _open(events: list[Event], worker: str) -> tuple[TaskStarted, int]:
    """Return the attempt that runs on a worker, and the batch of its own newest savepoint.

    Raises:
        LookupError: the worker runs no attempt, or the attempt has no savepoint.
    """
    found = [event for event in events if isinstance(event, TaskStarted) and event.worker == worker]
    if not found:
        raise LookupError(worker)
    started = found[-1]
    own_files = [
        e
        for e in events
        if getattr(e, "task", "") == started.task and getattr(e, "attempt", 0) == started.attempt
    ]
    saved = [event.savepoint.batch for event in own_files if isinstance(event, SubEpochSaved)]
    if not saved or any(isinstance(e, TaskFailed | TaskRevoked | TaskCommitted) for e in own_files):
        raise LookupError(worker)
    return started, saved[-1]


def measure() -> dict[str, float]:
    """Return the interruptions and the losses."""
    with tempfile.TemporaryDirectory() as diary, _variables():
        with preprocessed("savepoints", _WORKERS * _BATCHES * _SIZE) as experiment:
            interrupter = Interrupter(experiment, Path(diary))
            space = [
                {"lr": 0.001 * (number + 1), "batch_size": _SIZE, "number": number, "diary": diary}
                for number in range(_MODELS)
            ]
            with interrupter.running():
                experiment.run_fit(
                    Diary(),
                    space,
                    metric="loss",
                    mode="min",
                    limits=Limits(max_attempts=1000),
                    progress=False,
                )
            events = list(experiment.connection.kvs.events(experiment.name))
            while more := experiment.connection.kvs.events(experiment.name, events[-1].seq):
                events += more
            os.environ.pop(_PAUSE)
            locators = experiment.connection.kvs.experiment(experiment.name).locators
            assert locators.train is not None
            connection = connect(home=str(Path(locators.train.metadata).parent / "home"))
            different = sum(not found.is_equal for found in replay(connection, experiment.name))
        return _losses(interrupter.done, events) | {"different": different}


@contextmanager
def _variables() -> Iterator[None]:
    os.environ |= {"CEREBRO_SAVEPOINT_S": str(_INTERVAL_S), _PAUSE: str(_PAUSE_S)}
    try:
        yield
    finally:
        for name in ("CEREBRO_SAVEPOINT_S", _PAUSE):
            os.environ.pop(name, None)


def _losses(done: list[Interruption], events: list[Event]) -> dict[str, float]:
    """Return the maximum batches and seconds trained twice, over all kills and over all terminations.

    An interruption after the end of its sub-epoch does not count.
    """
    pauses = [
        after - before
        for one in done
        for before, after in zip(list(one.begun.values())[:-1], list(one.begun.values())[1:], strict=True)
    ]
    batch_s = statistics.median(pauses)
    lost: dict[bool, list[tuple[int, float]]] = {True: [], False: []}
    began = _beginnings(events)
    for one in (one for one in done if (one.task, one.attempt + 1) in began):
        first = began[one.task, one.attempt + 1]
        # The current batch was not complete.
        lost[one.is_kill].append((max(0, one.batch - first), max(0.0, one.at - one.begun.get(first, one.at))))
    return {
        "kills": len(lost[True]),
        "terminations": len(lost[False]),
        "batch_s": batch_s,
        "kill_batches": max((batches for batches, _ in lost[True]), default=0),
        "kill_s": max((seconds for _, seconds in lost[True]), default=0.0),
        "kill_mean_s": statistics.mean(seconds for _, seconds in lost[True]),
        "end_batches": max((batches for batches, _ in lost[False]), default=0),
        "saves": sum(isinstance(event, SubEpochSaved) for event in events),
    }


def _beginnings(events: list[Event]) -> dict[tuple[str, int], int]:
    """Return (task, attempt) -> first batch in the assignment, from the log."""
    state, found = ExperimentState(name="savepoints"), {}
    for event in events:
        state.apply(event)
        if isinstance(event, TaskAssigned) and "/train/m" in event.task:
            run, _, model = event.task.split("/")[:3]
            savepoint = state.runs[run].models[model].checkpoints.savepoint_of(event.task)
            found[event.task, event.attempt] = savepoint.batch if savepoint else 0
    return found


def cost() -> dict[str, float]:
    """Return the seconds of a savepoint of 100 MB here, and the maximum share of a sub-epoch for savepoints."""
    network = nn.Linear(1024, _STATE_BYTES // 3 // 4 // 1024, bias=False)
    trainee = Trainee(modules=[network])
    trainee.checkpoint.track(optimizer=(optimizer := torch.optim.Adam(network.parameters())))
    network(torch.ones(1, 1024)).sum().backward()
    optimizer.step()
    with tempfile.TemporaryDirectory(prefix="cerebro-bench-") as folder:
        name = iter(f"s{number}.pt" for number in range(1000))

        def write(state: checkpoints.State, batch: int, rows: int) -> None:
            checkpoints.save(Path(folder), next(name), state)

        savepoints = Savepoints(trainee, write=write)
        savepoints.declare(None, 1)
        savepoints.begin_pass()
        savepoints.begin_loop([])
        took = []
        for batch in range(1, 6):
            began = time.monotonic()
            assert savepoints.take(batch, batch)
            took.append(time.monotonic() - began)
        size = savepoints.num_bytes()
    cost_s = statistics.median(took)
    shares = {
        sub_epoch_s: _taken(sub_epoch_s, cost_s) * cost_s / sub_epoch_s for sub_epoch_s in _SUB_EPOCHS_S
    }
    return {
        "cost_s": cost_s,
        "bytes": size,
        "share": max(share for sub_epoch_s, share in shares.items() if sub_epoch_s >= 120),
        "short": sum(_taken(sub_epoch_s, cost_s) for sub_epoch_s in _SUB_EPOCHS_S if sub_epoch_s < 120),
    }


def _taken(sub_epoch_s: float, cost_s: float) -> int:
    """Return the number of savepoints in a sub-epoch, with batches of a tenth of a second."""
    timer, now, taken, batches = Timer(), 0.0, 0, round(sub_epoch_s * 10)
    timer.cost_s = cost_s
    timer.begin(now)
    for done in range(1, batches):
        now += 0.1
        if timer.is_due(now, share=done / batches, batch_s=0.1):
            timer.tried(now, now + cost_s, is_taken=True)
            now, taken = now + cost_s, taken + 1
    return taken


def benchmark() -> list[Figure]:
    """Measure losses and cost."""
    found, costs = measure(), cost()
    allowed = _INTERVAL_S / found["batch_s"] + 1
    done = (
        f"{found['kills']:.0f} kill -9 and {found['terminations']:.0f} SIGTERM at random batches of sub-epochs of "
        f"500"
    )
    at_most = partial(Figure, sense="at most")
    return [
        at_most(
            what=f"{KILLS} kill -9, {TERMINATIONS} SIGTERM at random batches: models that differ from a replay",
            measured=f"{found['different']:.0f} of {_MODELS} after {done}, {found['saves']:.0f} savepoints",
            ratio=found["different"]
            if found["kills"] + found["terminations"] == KILLS + TERMINATIONS
            else 99,
            bar=0,
        ),
        at_most(
            what="batches done again after a kill -9, over those of the interval and one more",
            measured=f"{found['kill_batches']:.0f} at most, {found['kill_s']:.2f} s; on average "
            f"{found['kill_mean_s']:.2f} s; the interval and one batch: {allowed:.1f}",
            ratio=found["kill_batches"] / allowed,
            bar=1.0,
            notes=(f"a savepoint each {_INTERVAL_S:g} s, batches of {1000 * found['batch_s']:.0f} ms",),
        ),
        at_most(
            what="batches done again after a SIGTERM",
            measured=f"{found['end_batches']:.0f} at most",
            ratio=found["end_batches"],
            bar=1,
        ),
        at_most(
            what="share of a sub-epoch of two minutes to four hours that savepoints of 100 MB take",
            measured=f"{100 * costs['share']:.2f} %, {costs['cost_s']:.2f} s each for {costs['bytes'] / 1e6:.0f} MB",
            ratio=costs["share"],
            bar=0.02,
        ),
        at_most(
            what="savepoints that sub-epochs of less than two minutes take by the clock",
            measured=f"{costs['short']:.0f}",
            ratio=costs["short"],
            bar=0,
        ),
    ]


def main() -> None:
    """Print the figures."""
    for figure in benchmark():
        print(figure)


if __name__ == "__main__":
    main()
