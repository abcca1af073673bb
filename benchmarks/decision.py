"""A decision of the controller's core with 1,000 models on 100 workers: how long it takes, what the core holds.

The core is driven by simulated workers in virtual time, as the live loop drives it: what is measured is `Core.apply` of
the events since the last decision, `Advisor.advise` and `Core.decide`, nothing else of the simulation. In a process of
its own, whose memory is that of the core and of the simulated store with its log.
"""

from __future__ import annotations

import gc
import json
import resource
import statistics
import subprocess
import sys
import time

from benchmarks.figure import Figure
from cerebro.contract.events import Event, FitPlan, FitRequest, RunStarted, SchedulePlanned
from cerebro.contract.records import Hyperparameters
from controller.advisor import Advisor, ChildHelper
from controller.core import Core
from controller.decide import Step, World
from controller.simulation.cluster import DATASET, Scenario, Simulation

MODELS, WORKERS = 1000, 100
DECISIONS = 4000


class _EnoughError(Exception):
    """So many decisions were measured."""


class TimedCore(Core):
    """Measures what a decision costs: taking in what is new, and deciding."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.taken: list[float] = []
        self._applied = 0.0

    def apply(self, event: Event) -> None:
        """Timed."""
        began = time.perf_counter()
        super().apply(event)
        self.spent(time.perf_counter() - began)

    def spent(self, seconds: float) -> None:
        """Count this as part of the next decision."""
        self._applied += seconds

    def decide(self, world: World) -> list[Step]:
        """Timed."""
        began = time.perf_counter()
        steps = super().decide(world)
        self.taken.append(self._applied + time.perf_counter() - began)
        self._applied = 0.0
        if len(self.taken) >= DECISIONS:
            raise _EnoughError
        return steps


class TimedAdvisor(Advisor):
    """Adds what it takes to the core's next decision."""

    def advise(self, core: Core) -> SchedulePlanned | None:
        """Timed."""
        assert isinstance(core, TimedCore)
        began = time.perf_counter()
        planned = super().advise(core)
        core.spent(time.perf_counter() - began)
        return planned


def benchmark() -> list[Figure]:
    """Median and 99th percentile, and the memory."""
    child = subprocess.run(
        [sys.executable, "-m", "benchmarks.decision"], check=True, capture_output=True, text=True
    )
    found = json.loads(child.stdout)
    case = f"a decision with {MODELS:,} models on {WORKERS} workers"
    notes = (
        f"{found['count']:,} decisions, {found['units']:,} units committed meanwhile; "
        f"the longest, which is the first, {found['max_ms']:.0f} ms",
    )
    return [
        Figure(
            what=f"{case}, median",
            measured=f"{found['median_ms']:.2f} ms",
            ratio=found["median_ms"],
            bar=5,
            sense="at most",
            unit="ms",
            notes=notes,
        ),
        Figure(
            what=f"{case}, 99th percentile",
            measured=f"{found['p99_ms']:.2f} ms",
            ratio=found["p99_ms"],
            bar=20,
            sense="at most",
            unit="ms",
        ),
        Figure(
            what=f"memory of the process that decided, {MODELS:,} models on {WORKERS} workers",
            measured=f"{found['memory_mb']:.0f} MB, of which {found['imports_mb']:.0f} MB before the first event",
            ratio=found["memory_mb"],
            bar=200,
            sense="at most",
            unit="MB",
        ),
    ]


def main() -> None:
    """Measure in this process; prints JSON."""
    before = _peak_mb()
    core = _simulated()
    taken = sorted(core.taken)
    found = {
        "count": len(taken),
        "units": sum(len(model.visits) for model in core.state.runs["fit-1"].models.values()),
        "median_ms": 1e3 * statistics.median(taken),
        "p99_ms": 1e3 * taken[int(0.99 * len(taken))],
        "max_ms": 1e3 * taken[-1],
        "memory_mb": _peak_mb(),
        "imports_mb": before,
    }
    print(json.dumps(found))


def _simulated() -> TimedCore:
    models: list[Hyperparameters] = [{"batch_size": 1, "n": n} for n in range(MODELS)]
    request = FitRequest(
        code="0" * 64, models=tuple(models), epochs=2, metric="loss", mode="min", scheduler="lrptw"
    )
    names = {f"m{n:04}": model for n, model in enumerate(models)}
    plan = FitPlan(dataset=DATASET, models=names, partitions=dict.fromkeys(range(WORKERS), 100))
    scenario = Scenario(
        holdings={f"worker-{n:02}": [n] for n in range(WORKERS)},
        # Costs and speeds spread over a factor of ten, so that no two events fall together.
        unit_time=lambda body, worker: 1.0 + (hash((body.key, worker)) % 9001) / 1000,
    )
    simulation = Simulation(scenario, request, RunStarted(run="fit-1", plan=plan))
    simulation.advisor = TimedAdvisor(ChildHelper())
    simulation.core = core = TimedCore(simulation.core.record)
    gc.collect()
    try:
        simulation.run()
    except _EnoughError:
        return core
    raise RuntimeError("the run ended before enough decisions were measured")


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
