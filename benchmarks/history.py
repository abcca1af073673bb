"""The history: simulated runs of models that have run before, with and without it.

Yesterday's run of the same models leaves a history: sub-epoch times with the same means and separate noise. Today's run
starts with or without it. Measured are the error of the first forecast, and the makespan of an epoch whose models
differ by up to thirty times. History helps only in the first epoch, because later the times are known anyway.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import replace
from random import Random

from benchmarks import autoscaler
from benchmarks.figure import Figure
from cerebro.contract.events import Event, RunStarted
from cerebro.contract.records import Hyperparameters
from cerebro.contract.runs import FitPlan, FitRequest
from cerebro.contract.stored.history import SubEpochHistory
from cerebro.contract.tasks.bodies import TaskBody, TrainTask
from research.simulation.cluster import Simulation
from research.simulation.history import history_of
from research.simulation.scenario import DATASET, Scenario

WORLDS, WORKERS = 40, 4
"""Scenarios of `benchmarks.autoscaler`, and their number of workers."""

_SEEDS, _SPREADS, _MODELS = 8, (3, 10, 30), (12, 16, 24)
_PLACES, _SIGMA, _SUB_EPOCH_S = 8, 0.1, 60.0


def benchmark() -> list[Figure]:
    """Measure the first forecast and the first epoch."""
    return [_forecasts(), _epochs()]


def _forecasts() -> Figure:
    blind: list[float] = []
    known: list[float] = []
    sure_blind = sure = 0
    for seed in range(WORLDS):
        world = autoscaler.World.drawn(seed)
        yesterday = autoscaler.simulated(replace(world, day=" yesterday"), WORKERS)
        for history, found in ((None, blind), (history_of(yesterday.log), known)):
            simulation = autoscaler.simulated(world, WORKERS, mode="advise", history=history)
            first = simulation.forecasts[0]
            left_s = simulation.ended_s - first.time
            found.append(abs(first.end.p50_s - left_s) / left_s)
            is_sure = left_s <= first.end.p90_s
            sure_blind += history is None and is_sure
            sure += history is not None and is_sure
    return Figure(
        what=f"the first forecast with a history: mean error of its P50; {WORLDS} scenarios, {WORKERS} workers",
        measured=f"the worst {100 * max(known):.0f} %, {sure} of {WORLDS} ended by its P90; without a history "
        f"{100 * statistics.fmean(blind):.0f} %, the worst {100 * max(blind):.0f} %, {sure_blind} of {WORLDS}",
        ratio=statistics.fmean(known),
        bar=0.08,
        sense="at most",
    )


def _epochs() -> Figure:
    found: dict[int, list[float]] = {models: [] for models in _MODELS}
    for spread in _SPREADS:
        for models, ratios in found.items():
            for seed in range(_SEEDS):
                history = history_of(_run(seed, models, spread, "yesterday", None)[1])
                blind, known = (_run(seed, models, spread, "today", each)[0] for each in (None, history))
                ratios.append(known / blind)
    every = [ratio for ratios in found.values() for ratio in ratios]
    by_models = ", ".join(
        f"{models} models {statistics.fmean(ratios):.3f}" for models, ratios in found.items()
    )
    return Figure(
        what=f"one epoch of models that differ by up to 3, 10 and 30 times, {_PLACES} workers: makespan with a history "
        "over that without",
        measured=f"{by_models}; the best {min(every):.2f}, the worst {max(every):.2f}; {len(every)} pairs",
        ratio=statistics.fmean(every),
        bar=1.0,
        sense="at most",
    )


def _run(
    seed: int, models: int, spread: float, day: str, history: Mapping[str, SubEpochHistory] | None
) -> tuple[float, tuple[Event, ...]]:
    """Return the makespan of an epoch, and the log."""
    costs = [math.exp(Random(f"{seed} {n}").uniform(0, math.log(spread))) for n in range(models)]
    named: dict[str, Hyperparameters] = {f"m{n:02}": {"batch_size": 1, "width": n} for n in range(models)}

    def sub_epoch_time(body: TaskBody, worker: str) -> float:
        assert isinstance(body, TrainTask)
        noise = Random(f"{seed} {day} {body.model} {body.partition}").lognormvariate(
            -_SIGMA * _SIGMA / 2, _SIGMA
        )
        return _SUB_EPOCH_S * costs[int(body.model[1:])] * noise

    scenario = Scenario(
        replicas={f"worker-{n}": [n] for n in range(_PLACES)},
        sub_epoch_time=sub_epoch_time,
        lease_s=80_000.0,
        history=history,
    )
    request = FitRequest(
        code="0" * 64,
        models=tuple(named.values()),
        epochs=1,
        metric="loss",
        mode="min",
        seed=seed,
        planner=False,
    )
    plan = FitPlan(dataset=DATASET, models=named, partitions=dict.fromkeys(range(_PLACES), 1000))
    simulation = Simulation(scenario, request, RunStarted(run="fit-1", plan=plan))
    run = simulation.run().runs["fit-1"]
    return run.clock.ended - run.clock.started, simulation.log


if __name__ == "__main__":
    for figure in benchmark():
        print(figure)
