"""The autoscaler: 40 simulated runs, each with a deadline and workers that come and go.

Each scenario draws models, partitions, epochs, sub-epoch times that differ by model, noise of sigma 0.3, killed
workers, and the first number of workers. The controller's core and the autoscaler decide in virtual time, with the
simulations of a live run; a simulated cluster manager resizes in realistic times.

`finish_by` is feasible if some constant number of workers ends in time. The cost is compared with the cheapest of these
numbers in hindsight, with the same kills and sub-epoch times.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from benchmarks.figure import Figure
from cerebro.contract.events import Event, ForecastMade, RunStarted
from cerebro.contract.records import Hyperparameters
from cerebro.contract.runs import FitPlan, FitRequest, Goal
from cerebro.contract.stored.history import SubEpochHistory
from cerebro.contract.tasks.bodies import EtlTask, TaskBody, TrainTask
from cerebro.state import Run
from cerebro.state.runs.goals import worker_hours
from controller.planning.answering import answer
from controller.scaling.autoscaler.autoscaler import Autoscaler, Rules, SizeHistory
from controller.scaling.autoscaler.forecast import LIMIT_S
from research.simulation.cluster import Simulation
from research.simulation.inline import InlinePlanner
from research.simulation.scenario import DATASET, Scenario, WorkerOutage

SCENARIOS, SIGMA = 40, 0.3
JOIN_S, ETL_S = 120.0, 60.0
MOST = 16
"""Maximum number of workers."""

_LOST_S = 300.0
"""Seconds until a killed worker returns."""


@dataclass(frozen=True, kw_only=True)
class World:
    """A scenario."""

    seed: int
    models: int
    partitions: int
    epochs: int
    sub_epoch_s: float
    workers: int
    kills_per_h: float
    day: str = ""
    """Another day has other sub-epoch times with the same means, and other kills."""

    @classmethod
    def drawn(cls, seed: int) -> World:
        """Return the scenario of a number."""
        rng = Random(f"brain {seed}")
        partitions = rng.choice((4, 6, 8))
        return cls(
            seed=seed,
            models=rng.choice((8, 12, 16)),
            partitions=partitions,
            epochs=rng.choice((2, 3, 4)),
            sub_epoch_s=rng.choice((120.0, 300.0)),
            workers=rng.choice((max(2, partitions // 2), partitions)),
            kills_per_h=rng.choice((0.0, 0.05, 0.1)),
        )

    def sub_epoch_time(self, body: TaskBody, worker: str) -> float:
        """Return a sub-epoch's seconds, the same on every worker at every time."""
        if isinstance(body, EtlTask):
            return ETL_S
        assert isinstance(body, TrainTask)
        cost = Random(f"{self.seed} {body.model}").uniform(0.6, 1.6)
        named = f"{self.seed} {body.model} {body.epoch} {body.partition}{self.day}"
        return self.sub_epoch_s * cost * Random(named).lognormvariate(-SIGMA * SIGMA / 2, SIGMA)

    def outages(self) -> list[WorkerOutage]:
        """Return the kills of all possible workers."""
        found = []
        for number in range(MOST):
            rng = Random(f"{self.seed} kills {number}{self.day}")
            at = rng.expovariate(self.kills_per_h / 3600) if self.kills_per_h else 1e12
            while at < 72 * 3600:
                found.append(WorkerOutage(worker=f"worker-{number}", start=at, length=_LOST_S))
                at += _LOST_S + rng.expovariate(self.kills_per_h / 3600)
        return found


@dataclass(kw_only=True)
class Outcome:
    """Result of one run."""

    ended_s: float
    hours: float
    """Worker-hours."""
    changes: list[tuple[float, int]] = field(default_factory=list)
    """(time, requested number) of each change."""
    forecasts: list[ForecastMade] = field(default_factory=list)
    log: tuple[Event, ...] = ()


def simulated(
    world: World,
    workers: int,
    *,
    finish_by: float | None = None,
    mode: str = "off",
    history: Mapping[str, SubEpochHistory] | None = None,
) -> Outcome:
    """Simulate a run with a number of workers, which the autoscaler may change with `finish_by` and mode ``act``.

    Args:
        history: history of earlier runs.
    """
    names = [f"worker-{number}" for number in range(MOST)]
    held: dict[str, list[int]] = {name: [] for name in names}
    for partition in range(world.partitions):
        held[names[partition % workers]].append(partition)
    models: dict[str, Hyperparameters] = {
        f"m{n:02}": {"batch_size": 1, "width": n} for n in range(world.models)
    }
    goal = Goal() if finish_by is None else Goal(finish_by=finish_by, workers=(1, MOST))
    request = FitRequest(
        code="0" * 64,
        models=tuple(models.values()),
        epochs=world.epochs,
        metric="loss",
        mode="min",
        seed=world.seed,
        planner=False,
        goal=goal,
    )
    plan = FitPlan(dataset=DATASET, models=models, partitions=dict.fromkeys(range(world.partitions), 1000))
    scenario = Scenario(
        replicas=held,
        sub_epoch_time=world.sub_epoch_time,
        outages=world.outages(),
        has_pods=True,
        lease_s=600.0,
        absent=frozenset(names[workers:]),
        history=history,
    )
    autoscaler = Autoscaler(_Planner(), Rules(mode=mode, most=MOST, can_act=True, join_s=JOIN_S))
    simulation = Simulation(scenario, request, RunStarted(run="fit-1", plan=plan), autoscaler=autoscaler)
    outcome = Outcome(ended_s=0.0, hours=0.0)

    def resize(count: int) -> None:
        outcome.changes.append((simulation.now, count))
        simulation.size_history = SizeHistory(changed_at=simulation.now)
        simulation.resize(count, join_s=JOIN_S)

    simulation.requested_workers = resize
    state = simulation.run()
    run: Run = state.runs["fit-1"]
    outcome.ended_s, outcome.forecasts = run.clock.ended, run.scheduling.forecasts
    outcome.hours, outcome.log = worker_hours(state, run, run.clock.ended), simulation.log
    return outcome


class _Planner(InlinePlanner):
    """Planner with real answers.

    The first, measured one gets the time of a live run; hundreds of later ones get a tenth.
    """

    _limit_s = LIMIT_S

    def send(self, message: Any) -> None:
        """Compute the answer at once."""
        self._answer = answer({**message, "limit_s": self._limit_s})
        self._limit_s = LIMIT_S / 10


_FIXED = (2, 4, 6, 8, 16)
"""Constant numbers of workers for comparison."""

_ADVISED = 4
"""Number of workers for a forecast without changes."""


def benchmark() -> list[Figure]:
    """Measure kept deadlines, their cost, and the number of size changes."""
    began = time.monotonic()
    kept = feasible = flaps = surely = 0
    costs, off, max_changes = [], [], 0
    for seed in range(SCENARIOS):
        world = World.drawn(seed)
        fixed = {n: simulated(world, n, mode="advise" if n == _ADVISED else "off") for n in _FIXED}
        slowest, fastest = max(o.ended_s for o in fixed.values()), min(o.ended_s for o in fixed.values())
        share = Random(f"goal {seed}").uniform(0.25, 0.8)
        finish_by = fastest * 1.15 + share * (slowest - fastest * 1.15) * 0.5
        in_time = [outcome for outcome in fixed.values() if outcome.ended_s <= finish_by]
        found = simulated(world, world.workers, finish_by=finish_by, mode="act")
        flaps += _flaps(found.changes)
        max_changes = max(max_changes, len(found.changes))
        advised = fixed[_ADVISED]
        first = advised.forecasts[0]
        off.append(abs(first.time + first.end.p50_s - advised.ended_s) / (advised.ended_s - first.time))
        surely += advised.ended_s <= first.time + first.end.p90_s
        if in_time:
            feasible += 1
            kept += found.ended_s <= finish_by
            costs.append(found.hours / min(outcome.hours for outcome in in_time))
    took_s = time.monotonic() - began
    note = f"{took_s:.0f} s for {SCENARIOS} scenarios; at most {max_changes} changes in a run"
    return [
        Figure(
            what=f"finish_by kept, of those that a fixed number of workers keeps; {SCENARIOS} scenarios with kills",
            measured=f"{kept} of {feasible}",
            ratio=kept / max(1, feasible),
            bar=0.9,
            sense="at least",
            notes=(note,),
        ),
        Figure(
            what="worker-hours over those of the best fixed number in hindsight, mean",
            measured=f"median {statistics.median(costs):.2f}, the worst {max(costs):.2f}",
            ratio=statistics.fmean(costs),
            bar=1.15,
            sense="at most",
        ),
        Figure(
            what="changes of the number of workers that were undone within an hour, per run",
            measured=f"{flaps} in {SCENARIOS} runs",
            ratio=flaps / SCENARIOS,
            bar=0.1,
            sense="at most",
        ),
        Figure(
            what=f"the first forecast beside the truth, {_ADVISED} workers: mean error of its P50",
            measured=f"the worst {100 * max(off):.0f} %",
            ratio=statistics.fmean(off),
            bar=0.15,
            sense="at most",
        ),
        Figure(
            what="the same: runs that ended by its P90",
            measured=f"{surely} of {SCENARIOS}",
            ratio=surely / SCENARIOS,
            bar=0.9,
            sense="at least",
        ),
    ]


def _flaps(changes: list[tuple[float, int]]) -> int:
    """Return the number of opposite changes within an hour."""
    found = 0
    for (_, first), (at, second), (again, third) in zip(changes, changes[1:], changes[2:], strict=False):
        turned = (second - first) * (third - second) < 0
        found += turned and again - at < 3600
    return found
