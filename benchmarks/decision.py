"""Time of a controller decision with 1,000 models on 100 workers, and the core's memory.

Simulated workers drive the core in virtual time, like the live loop. Measured are `Core.apply` of the events since the
last decision, `PlannerProcess.advise` and `Core.decide`, without the rest of the simulation. It runs in a separate
process, whose memory contains the core and the simulated store with its log.
"""

from __future__ import annotations

import gc
import json
import random
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.figure import Figure
from cerebro.contract.events import (
    Event,
    RunRequested,
    RunStarted,
    SchedulePlanned,
    TaskAssigned,
    TaskCommitted,
    TaskStarted,
    WorkerJoined,
)
from cerebro.contract.parallel_plans import SINGLE, ParallelPlan
from cerebro.contract.records import ExperimentRecord, Hyperparameters, Locator, Locators, Replica
from cerebro.contract.runs import FitPlan, FitRequest
from cerebro.contract.tasks.bodies import TaskBody, TrainTask
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.results import Curve, CurvePoint, TaskResult, Timings
from cerebro.scheduling.policies import is_by_priority_score
from cerebro.state import Run, TaskKey
from controller.decisions.core import Core
from controller.decisions.decide import Step
from controller.planning import PlannerProcess, SpawnedProcess
from controller.scaling.cluster_snapshot import ClusterSnapshot, WorkerView
from research.simulation.cluster import Simulation
from research.simulation.scenario import DATASET, Scenario

MODELS, WORKERS = 1000, 100
MANY_WORKERS = 1000
"""Idle workers at the first decision of a run."""
DECISIONS, BY_PARALLEL_PLANS = 4000, 400
PARALLEL_PLANS = (
    SINGLE,
    ParallelPlan(technique="ddp", size=2),
    ParallelPlan(technique="fsdp", size=2),
    ParallelPlan(technique="fsdp", size=4),
)
"""Parallel plans of each model in the case with a choice."""
POINTS = 12
"""Points of a sub-epoch's curve in the case that compares models by curves."""


_RECORD = ExperimentRecord(name="e", locators=Locators(train=Locator(metadata="made-up.csv")))


class _EnoughError(Exception):
    """The number of decisions to measure is reached."""


class TimedCore(Core):
    """A core that measures the cost of a decision: applying events and deciding."""

    def __init__(self, record: ExperimentRecord) -> None:
        super().__init__(record)
        self.taken: list[float] = []
        self.enough = DECISIONS
        self._applied = 0.0

    def apply(self, event: Event, *, is_news: bool = True) -> None:
        """Apply an event, timed."""
        began = time.perf_counter()
        super().apply(event, is_news=is_news)
        self.spent(time.perf_counter() - began)

    def spent(self, seconds: float) -> None:
        """Count these seconds as part of the next decision."""
        self._applied += seconds

    def decide(self, snapshot: ClusterSnapshot, run: Run | None = None) -> list[Step]:
        """Decide, timed."""
        began = time.perf_counter()
        steps = super().decide(snapshot, run)
        self.taken.append(self._applied + time.perf_counter() - began)
        self._applied = 0.0
        if len(self.taken) >= self.enough:
            raise _EnoughError
        return steps


class TimedPlannerProcess(PlannerProcess):
    """A planner process that adds its time to the core's next decision."""

    def advise(self, core: Core) -> SchedulePlanned | None:
        """Advise, timed."""
        assert isinstance(core, TimedCore)
        began = time.perf_counter()
        planned = super().advise(core)
        core.spent(time.perf_counter() - began)
        return planned


def benchmark() -> list[Figure]:
    """Measure median and 99th percentile of a decision, and memory, also with a whole epoch in the log."""
    found = json.loads(_of_child("decisions"))
    epoch, first = json.loads(_of_child("epoch")), json.loads(_of_child("first"))
    case = f"a decision with {MODELS:,} models on {WORKERS} workers"
    note = (
        f"{found['count']:,} decisions, {found['sub_epochs']:,} sub-epochs committed meanwhile; the longest, which is "
        f"the "
        f"first, {found['max_ms']:.0f} ms"
    )
    by_parallel_plans, by_priority_score = (
        json.loads(_of_child("parallel_plans")),
        json.loads(_of_child("priority_scores")),
    )
    memory = f"memory of the process that decided, {MODELS:,} models on {WORKERS} workers"
    return [
        _at_most(f"{case}, median", found["median_ms"], 5, "ms", f"{found['median_ms']:.2f} ms", note),
        _at_most(f"{case}, 99th percentile", found["p99_ms"], 20, "ms", f"{found['p99_ms']:.2f} ms"),
        _at_most(
            f"{case} of 4 devices, {len(PARALLEL_PLANS)} ways each, median",
            by_parallel_plans["median_ms"],
            5,
            "ms",
            f"{by_parallel_plans['median_ms']:.2f} ms",
            f"99th percentile {by_parallel_plans['p99_ms']:.1f} ms; a third of the models on two devices",
        ),
        _at_most(
            f"{case} by promising, 99th percentile",
            by_priority_score["p99_ms"],
            20,
            "ms",
            f"{by_priority_score['p99_ms']:.1f} ms",
            f"median {by_priority_score['median_ms']:.2f} ms; sub-epochs tell curves of {POINTS} points",
        ),
        _at_most(
            f"the first decision with {MODELS:,} models on {MANY_WORKERS:,} idle workers, with the dispatch state made",
            first["s"],
            3,
            "s",
            f"{first['s']:.2f} s, of which the dispatch state {first['board_s']:.2f} s",
            f"a sub-epoch for each of the {first['sub_epochs']:,} workers",
        ),
        _at_most(
            memory,
            found["memory_mb"],
            200,
            "MB",
            f"{found['memory_mb']:.0f} MB, of which {found['imports_mb']:.0f} MB before the first event",
        ),
        _at_most(
            f"the same after an epoch, {MODELS * WORKERS:,} sub-epochs",
            epoch["memory_mb"],
            200,
            "MB",
            f"{epoch['memory_mb']:.0f} MB",
            f"the core alone, without the simulated store; {epoch['us']:.0f} us an event, three events a sub-epoch",
        ),
    ]


def _of_child(what: str) -> str:
    command = [sys.executable, "-m", "benchmarks.decision", what]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _at_most(what: str, value: float, bar: float, measure: str, measured: str, *notes: str) -> Figure:
    return Figure(
        what=what, measured=measured, ratio=value, bar=bar, sense="at most", measure=measure, notes=notes
    )


def main() -> None:
    """Measure in this process and print JSON."""
    of: dict[str, Callable[[], dict[str, float]]] = {
        "epoch": _epoch,
        "first": _first,
        "decisions": _decisions,
        "parallel_plans": partial(_decisions, PARALLEL_PLANS),
        "priority_scores": partial(_decisions, scheduler="promising"),
    }
    print(json.dumps(of[sys.argv[1]]()))


def _decisions(
    parallel_plans: tuple[ParallelPlan, ...] = (), *, scheduler: str = "lrptw"
) -> dict[str, float]:
    before = _peak_mb()
    core = _simulated(parallel_plans, BY_PARALLEL_PLANS if parallel_plans else DECISIONS, scheduler)
    taken = sorted(core.taken)
    return {
        "count": len(taken),
        "sub_epochs": sum(len(model.sub_epochs) for model in core.state.runs["fit-1"].models.values()),
        "median_ms": 1e3 * statistics.median(taken),
        "p99_ms": 1e3 * taken[int(0.99 * len(taken))],
        "max_ms": 1e3 * taken[-1],
        "memory_mb": _peak_mb(),
        "imports_mb": before,
    }


def _first() -> dict[str, float]:
    """Measure the first decision, with idle workers and equal models."""
    core = Core(_RECORD)
    for event in _opening(MANY_WORKERS):
        core.apply(event)
    state_sizes = {
        n: WorkerView(incarnation="a", weight=1.0, kinds=("train",), replicas=()) for n in core.state.workers
    }
    began = time.perf_counter()
    dispatch_state = core.fit
    created_at = time.perf_counter()
    steps = core.decide(ClusterSnapshot(workers=state_sizes))
    ended = time.perf_counter()
    if dispatch_state is None or len(steps) != MANY_WORKERS:
        raise RuntimeError(f"{len(steps)} sub-epochs were assigned to {MANY_WORKERS} workers")
    return {"s": ended - began, "board_s": created_at - began, "sub_epochs": len(steps)}


def _epoch() -> dict[str, float]:
    """Fold a synthetic log of an epoch; workers take the models in turn from different starts."""
    core = Core(_RECORD)
    for event in _opening(WORKERS):
        core.apply(event)
    step = MODELS // WORKERS
    began = time.perf_counter()
    for turn in range(MODELS):
        for number in range(WORKERS):
            for event in _sub_epoch((turn + number * step) % MODELS, number, float(turn)):
                core.apply(event)
    used = time.perf_counter() - began
    if len(core.state.runs["fit-1"].models["m0000"].sub_epochs) != WORKERS:
        raise RuntimeError("the epoch is not complete")
    return {"memory_mb": _peak_mb(), "us": 1e6 * used / (3 * MODELS * WORKERS)}


def _opening(workers: int) -> Iterator[Event]:
    request, started = _run(workers)
    yield RunRequested(run="fit-1", request=request)
    for number in range(workers):
        yield WorkerJoined(
            worker=_worker(number),
            incarnation="a",
            weight=1.0,
            kinds=("train",),
            replicas=(Replica(dataset=DATASET, partition=number),),
        )
    yield started


def _sub_epoch(model: int, worker: int, now: float) -> Iterator[Event]:
    key = TaskKey(run="fit-1", kind="train", model=f"m{model:04}", epoch=1, partition=worker)
    fields: dict[str, Any] = {"task": str(key), "attempt": 1, "worker": _worker(worker)}
    yield TaskAssigned(**fields, time=now)
    yield TaskStarted(**fields, time=now)
    name = f"e/fit-1/m{model:04}/u{worker:05}-a1.pt"
    result = TaskResult(
        rows=100,
        metrics={"loss": 1.0, "accuracy": 0.5},
        checkpoint=CheckpointRef(name=name, checksum=f"{zlib.crc32(name.encode()):016x}", size=10**8),
        timings=Timings(load_s=0.1, compute_s=0.8, save_s=0.1),
    )
    yield TaskCommitted(**fields, time=now + 1, result=result)


def _worker(number: int) -> str:
    return f"worker-{number:02}"


def _run(workers: int, scheduler: str = "lrptw") -> tuple[FitRequest, RunStarted]:
    models: list[Hyperparameters] = [{"batch_size": 1, "n": n} for n in range(MODELS)]
    request = FitRequest(
        code="0" * 64, models=tuple(models), epochs=2, metric="loss", mode="min", scheduler=scheduler
    )
    names = {f"m{n:04}": model for n, model in enumerate(models)}
    plan = FitPlan(dataset=DATASET, models=names, partitions=dict.fromkeys(range(workers), 100))
    return request, RunStarted(run="fit-1", plan=plan)


def _curve(body: TrainTask, seconds: float) -> Curve:
    """Return a loss that falls as a power of the model's trained sub-epochs, at a different pace for each model."""
    number = int(body.model[1:])
    rng, pace = random.Random(f"{number}/{body.sub_epoch}"), 0.1 + number % 97 / 40
    points = ((0.05 + n / POINTS, body.sub_epoch + n / POINTS) for n in range(POINTS))
    return Curve(
        name="loss",
        points=tuple(
            CurvePoint(t * seconds, 0.5 + 6 * (1 + done) ** -pace * rng.uniform(0.95, 1.05), 10)
            for t, done in points
        ),
    )


def _simulated(parallel_plans: tuple[ParallelPlan, ...], decisions: int, scheduler: str) -> TimedCore:
    """Simulate models with parallel plans on workers with four devices.

    The first plan is ruled out for a third of the models, whose sub-epochs then take two devices.
    """

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        is_first = isinstance(body, TrainTask) and body.parallel_plan is None
        is_large = parallel_plans and is_first and int(getattr(body, "model", "m0")[1:]) % 3 == 0
        return (
            Failure(kind=FailureKind.OUT_OF_MEMORY, message="made up", memory_kind="device")
            if is_large
            else None
        )

    devices = max((parallel_plan.size for parallel_plan in parallel_plans), default=1)
    scenario = Scenario(
        replicas={_worker(n): [n] for n in range(WORKERS)},
        outcome=outcome,
        devices={_worker(n): devices for n in range(WORKERS)},
        # Costs and speeds spread over a factor of ten, so that events do not coincide.
        sub_epoch_time=lambda body, worker: 1.0 + zlib.crc32(f"{body.key} {worker}".encode()) % 9001 / 1000,
    )
    if is_by_priority_score(scheduler):
        scenario.curve = _curve
    request, started = _run(WORKERS, scheduler)
    if parallel_plans:
        started = started.model_copy(
            update={"plan": started.plan.model_copy(update={"parallel_plans": parallel_plans})}
        )
    simulation = Simulation(scenario, request, started)
    simulation.planner_process = TimedPlannerProcess(SpawnedProcess())
    simulation.core = core = TimedCore(simulation.core.record)
    core.enough = decisions
    gc.collect()
    try:
        simulation.run()
    except _EnoughError:
        return core
    raise RuntimeError("the run ended before enough decisions were measured")


def _peak_mb() -> float:
    # Not `ru_maxrss`, which a process inherits from its parent.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


if __name__ == "__main__":
    main()
