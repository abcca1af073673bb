"""Trials: accuracy of their predictions, duration, and correctness (`trial_verdicts`).

A real worker with two devices of one core each runs against the real store; the tests' harness assigns tasks. After a
trial of a parallel plan, a model trains sub-epochs by it: the same loop, the same rows, warm processes. A small model's
trial counts from its assignment to its result: fresh processes, imports, the ranks' rendezvous.

Times are wall-clock, so they include effects of other work on the machine.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import trial_verdicts
from benchmarks.figure import Figure
from benchmarks.training import CLASSES, FEATURES, Perceptron
from cerebro.contract.events import TaskCommitted
from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.tasks.bodies import Position, TrainTask, TrialTask
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.results import TaskResult
from cerebro.contract.trials import DeviceKind, TrialOutcome
from cerebro.data.manifests import Source
from cerebro.data.shards import write_rows
from tests.kvs_api.real import Database, Service
from tests.state.stories import DATASET
from tests.worker.agent.agents import Agents, agent_forks
from tests.worker.training.handlers import volumes_in

MEDIAN_BAR, TAIL_BAR, TRIAL_BAR_S = 0.10, 0.20, 3.0
_ROWS, _SUB_EPOCHS, _TRIALS = 4096, 4, 5
_DEVICE = DeviceKind(kind="cpu", name="1 core")
_SINGLE, _DDP, _FSDP = (
    ParallelPlan(technique="single"),
    ParallelPlan(technique="ddp", size=2),
    ParallelPlan(technique="fsdp", size=2),
)
_MODELS = ((512, 32), (768, 64), (1024, 128), (1280, 256))
"""(width, batch size)."""
_PACED = [(parallel_plan, *model) for model in _MODELS for parallel_plan in (_SINGLE, _DDP)] + [
    (_FSDP, *model) for model in _MODELS[:2]
]


class Predicted(NamedTuple):
    """A sub-epoch's predicted seconds, its actual ones, and the previous sub-epoch's."""

    parallel_plan: ParallelPlan
    told_s: float
    took_s: float
    before_s: float

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return abs(self.told_s / self.took_s - 1)

    @property
    def unrest(self) -> float:
        """Error of the previous sub-epoch as a prediction: the noise of other work on the machine."""
        return abs(self.before_s / self.took_s - 1)


def benchmark() -> list[Figure]:
    """Measure all three."""
    load = os.getloadavg()[0]
    with _worker() as worker:
        predicted = _pace(worker)
        seconds = _durations(worker)
    note = f"load average before: {load:.1f}, after: {os.getloadavg()[0]:.1f}"
    return [
        *_of_pace(predicted, note),
        _of_durations(seconds, note),
        *trial_verdicts.figures(),
    ]


# --- pace ------------------------------------------------------------------------------------------------


class _Worker:
    """A worker and its harness."""

    def __init__(self, agents: Agents, code: str) -> None:
        self._agents, self._code, self._count = agents, code, 0

    def tried(self, parallel_plan: ParallelPlan, width: int, batch_size: int) -> tuple[TrialOutcome, float]:
        """Run a trial; return its outcome and the seconds from assignment to result."""
        group, began = self._named("g"), time.monotonic()
        body = TrialTask(
            key=f"fit-1/trial/{group}/w",
            model="m00",
            hyperparams=_hyperparams(width, batch_size),
            hang_timeout_s=100.0,
            group=group,
            id="w",
            parallel_plan=parallel_plan,
            device=_DEVICE,
            partition=0,
            **self._common,
        )
        outcome = self._result(body, parallel_plan).trial
        assert outcome is not None
        assert outcome.is_usable, outcome
        return outcome, time.monotonic() - began

    def sub_epochs(
        self, parallel_plan: ParallelPlan, width: int, batch_size: int, count: int
    ) -> list[TaskResult]:
        """Train sub-epochs of one model in sequence."""
        model, results = self._named("m"), list[TaskResult]()
        checkpoint: CheckpointRef | None = None
        steps = -(-_ROWS // batch_size)
        for sub_epoch in range(count):
            body = TrainTask(
                key=f"fit-1/train/{model}/e{sub_epoch + 1}/p0",
                model=model,
                hyperparams=_hyperparams(width, batch_size),
                hang_timeout_s=100.0,
                epoch=sub_epoch + 1,
                partition=0,
                sub_epoch=sub_epoch,
                position=Position(
                    epochs=count, sub_epochs=count, step=steps * sub_epoch, total_steps=steps * count
                ),
                checkpoint=checkpoint,
                parallel_plan=None if parallel_plan.is_single else parallel_plan,
                **self._common,
            )
            results.append(self._result(body, parallel_plan))
            checkpoint = results[-1].checkpoint
        return results

    @property
    def _common(self) -> dict[str, Any]:
        return {"experiment": "one", "run": "fit-1", "code": self._code, "dataset": DATASET, "seed": 1}

    def _named(self, letter: str) -> str:
        self._count += 1
        return f"{letter}{self._count:02}"

    def _result(self, body: TrialTask | TrainTask, parallel_plan: ParallelPlan) -> TaskResult:
        self._agents.assign(body, attempt=1, devices=(0, 1)[: parallel_plan.size])
        event = self._agents.end_of(body.key)
        assert isinstance(event, TaskCommitted), event
        return event.result


@contextmanager
def _worker() -> Iterator[_Worker]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cerebro-bench-")))
        (folder / "store").mkdir()
        database = stack.enter_context(Database(folder / "store"))
        service = stack.enter_context(Service(database))
        kvs = service.client()
        stack.callback(kvs.close)
        agents = Agents(service, kvs, folder, stack.enter_context(agent_forks()))
        handlers = "model_hopper trial_runner"
        process = agents.start(devices=2, handler=handlers, is_fork=False, CEREBRO_CORES="2")
        stack.callback(process.wait)
        stack.callback(process.kill)
        draw = np.random.default_rng(0)
        rows = [(draw.normal(size=FEATURES).astype(np.float32), n % CLASSES) for n in range(_ROWS)]
        source = Source(fingerprint="trials", metadata="xxh3_64:0")
        write_rows(volumes_in(folder).partition(DATASET, "train", 0), rows, source)
        worker = _Worker(agents, agents.learn(Perceptron()))
        for parallel_plan in (_SINGLE, _DDP):
            worker.sub_epochs(parallel_plan, 64, 64, 1)  # starts the processes
        yield worker


def _hyperparams(width: int, batch_size: int) -> dict[str, Any]:
    return {"width": width, "batch_size": batch_size, "passes": 1, "lr": 0.001}


def _pace(worker: _Worker) -> list[Predicted]:
    found = []
    for parallel_plan, width, batch_size in _PACED:
        outcome, _ = worker.tried(parallel_plan, width, batch_size)
        # As in the controller's `SubEpochTimes.observe_trials`.
        fixed_s = outcome.load_s + outcome.save_s
        told_s = outcome.batch_s * _ROWS / batch_size + fixed_s
        timings = [
            result.timings for result in worker.sub_epochs(parallel_plan, width, batch_size, _SUB_EPOCHS + 1)
        ]
        taken = [each.load_s + each.compute_s + each.save_s for each in timings]
        # A model's first sub-epoch loads no checkpoint.
        found += [Predicted(parallel_plan, told_s, took_s, before_s) for before_s, took_s in pairwise(taken)]
    return found


def _of_pace(predicted: Sequence[Predicted], note: str) -> list[Figure]:
    errors = sorted(each.error for each in predicted)
    tail = statistics.quantiles(errors, n=10)[-1]
    by_parallel_plan = ", ".join(
        f"{parallel_plan.label} "
        f"{statistics.median(each.error for each in predicted if each.parallel_plan == parallel_plan):.1%}"
        for parallel_plan in (_SINGLE, _DDP, _FSDP)
    )
    seconds = sorted(each.took_s for each in predicted)
    what = f"trials: seconds of a sub-epoch as a trial tells them, over {len(errors)} sub-epochs: "
    unrest = statistics.median(each.unrest for each in predicted)
    bias = statistics.median(each.told_s / each.took_s for each in predicted) - 1
    told = (
        f"sub-epochs of {seconds[0]:.1f} to {seconds[-1]:.1f} s; median by way: {by_parallel_plan}; with its sign "
        f"{bias:+.1%}"
    )
    median = statistics.median(errors)
    return [
        Figure(
            what=f"{what}median error",
            measured=f"{median:.1%}",
            ratio=median,
            bar=MEDIAN_BAR,
            sense="at most",
            notes=(told, f"had the sub-epoch before told, of the same model and way: {unrest:.1%}", note),
        ),
        Figure(
            what=f"{what}error at the 90th percentile",
            measured=f"{tail:.1%}",
            ratio=tail,
            bar=TAIL_BAR,
            sense="at most",
        ),
    ]


# --- duration --------------------------------------------------------------------------------------------


def _durations(worker: _Worker) -> dict[str, list[tuple[float, float]]]:
    """Return plan -> seconds with and without the start of processes."""
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(_TRIALS):
        for parallel_plan in (_SINGLE, _DDP, _FSDP):
            outcome, with_start_s = worker.tried(parallel_plan, 64, 64)
            found.setdefault(parallel_plan.label, []).append((with_start_s, outcome.seconds))
    return found


def _of_durations(found: Mapping[str, Sequence[tuple[float, float]]], note: str) -> Figure:
    medians = {
        parallel_plan: statistics.median(whole for whole, _ in seconds)
        for parallel_plan, seconds in found.items()
    }
    own_times = {
        parallel_plan: statistics.median(own_s for _, own_s in seconds)
        for parallel_plan, seconds in found.items()
    }
    return Figure(
        what="trials: seconds of a trial of a small model, with the start of its processes, by the slowest way",
        measured=", ".join(f"{parallel_plan} {seconds:.1f} s" for parallel_plan, seconds in medians.items()),
        ratio=max(medians.values()),
        bar=TRIAL_BAR_S,
        sense="at most",
        measure="s",
        notes=(
            f"without the start: "
            f"{', '.join(f'{parallel_plan} {seconds:.1f} s' for parallel_plan, seconds in own_times.items())}",
            note,
        ),
    )


def main() -> None:
    """Print the figures."""
    for figure in benchmark():
        print(figure)


if __name__ == "__main__":
    main()
