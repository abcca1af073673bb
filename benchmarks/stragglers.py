"""Copies for stragglers: cost of one four times slower worker among eight, in simulation.

16 models, 2 epochs, sub-epochs of five minutes, partitions that take a minute to build. The controller's core decides
in virtual time, in pods whose ETL containers are idle during training. Each seed draws other sub-epoch times, the same
with and without the slow worker.
"""

from __future__ import annotations

import statistics
from random import Random
from typing import NamedTuple

from benchmarks.figure import Figure
from cerebro.contract.events import RunStarted, TaskCommitted
from cerebro.contract.records import Hyperparameters
from cerebro.contract.runs import FitPlan, FitRequest
from cerebro.contract.tasks.bodies import EtlTask, TaskBody, TrainTask
from research.simulation.cluster import Simulation
from research.simulation.scenario import DATASET, Scenario

WORKERS, MODELS, EPOCHS, SEEDS = 8, 16, 2, 6
ETL_S, SUB_EPOCH_S, SLOWER = 60.0, 300.0, 4.0


class Outcome(NamedTuple):
    """Result of one run."""

    makespan_s: float
    copies: int


def simulated(slower: float, seed: int, sigma: float) -> Outcome:
    """Simulate one run whose last worker is slower by this factor."""

    def sub_epoch_time(body: TaskBody, worker: str) -> float:
        if isinstance(body, EtlTask):
            return ETL_S
        assert isinstance(body, TrainTask)
        noise = Random(f"{seed} {body.model} {body.epoch} {body.partition}").lognormvariate(0, sigma)
        return SUB_EPOCH_S * noise * (slower if worker == f"worker-{WORKERS - 1}" else 1.0)

    models: dict[str, Hyperparameters] = {f"m{number:02}": {"batch_size": 1} for number in range(MODELS)}
    request = FitRequest(
        code="0" * 64, models=tuple(models.values()), epochs=EPOCHS, metric="loss", mode="min", seed=seed
    )
    plan = FitPlan(dataset=DATASET, models=models, partitions=dict.fromkeys(range(WORKERS), 10_000))
    replicas = {f"worker-{number}": [number] for number in range(WORKERS)}
    scenario = Scenario(replicas=replicas, sub_epoch_time=sub_epoch_time, has_pods=True, lease_s=60.0)
    simulation = Simulation(scenario, request, RunStarted(run="fit-1", plan=plan))
    simulation.run()
    committed = (event for event in simulation.log if isinstance(event, TaskCommitted))
    return Outcome(simulation.now - ETL_S, sum(event.task.startswith("fit-1/etl") for event in committed))


def benchmark() -> list[Figure]:
    """Measure the cost of the slow worker at two levels of noise, and the copies between equal workers."""
    found = []
    calm_copies = 0
    for sigma in (0.1, 0.3):
        pairs = [(simulated(SLOWER, seed, sigma), simulated(1.0, seed, sigma)) for seed in range(SEEDS)]
        ratios = [slow.makespan_s / calm.makespan_s for slow, calm in pairs]
        calm_copies += sum(calm.copies for _, calm in pairs)
        copies = statistics.fmean(slow.copies for slow, _ in pairs)
        hours = statistics.fmean(slow.makespan_s for slow, _ in pairs) / 3600
        found.append(
            Figure(
                what=f"one of {WORKERS} workers 4 times slower, {MODELS} models x {EPOCHS} epochs, sub-epoch times of "
                f"sigma {sigma:g}: makespan over that without it, mean of {SEEDS}",
                measured=f"{hours:.2f} h, {copies:.1f} copies, the worst {max(ratios):.2f}",
                ratio=statistics.fmean(ratios),
                bar=1.45,
                sense="at most",
            )
        )
    return [
        *found,
        Figure(
            what="the same without a slow worker: copies made, per run",
            measured=f"{calm_copies} in {2 * SEEDS} runs",
            ratio=calm_copies / (2 * SEEDS),
            bar=0.25,
            sense="at most",
        ),
    ]
