"""Several objectives: hypervolume of MO-ASHA at half the epochs of random search, on simulated models."""

from __future__ import annotations

import random

from benchmarks.figure import Figure
from benchmarks.search_world import Configurations
from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import ASHA, ProcedureChoice, RandInt, Random, SearchRequest, Space
from cerebro.search.pareto import Criteria, hypervolume
from cerebro.search.transducer import Search
from cerebro.testing.simulated_run import SimulatedRun

_EPOCHS, _MODELS, _WORKERS = 81, 40, 8
_GAIN = 0.3
"""Accuracy that a model of size 0 lacks, compared with size 1."""
SEEDS = range(30)
SPACE: Space = {"number": RandInt(low=0, high=10**6)}
_CRITERIA = Criteria(objectives={"accuracy": "max", "size": "min"})


def benchmark() -> list[Figure]:
    """Return the share of seeds with a larger hypervolume by MO-ASHA."""
    budget, wins, ratios = _EPOCHS * _MODELS, 0, []
    for seed in SEEDS:
        at_random = _area(Random(active=2 * _WORKERS), seed, budget)
        asha = _area(ASHA(eta=3, active=2 * _WORKERS), seed, budget // 2)
        wins += asha > at_random
        ratios.append(asha / at_random)
    return [
        Figure(
            what="objectives: seeds in which MO-ASHA covers more hypervolume at half the epochs of random search",
            measured=f"{len(SEEDS)} seeds, {budget // 2:,} and {budget:,} epochs, accuracy and size of simulated "
            f"models; mean ratio {sum(ratios) / len(ratios):.3f}",
            ratio=wins / len(SEEDS),
            bar=0.8,
            sense="at least",
        )
    ]


class _World(SimulatedRun):
    """Models with the learning curves of the benchmark `search`, less accurate if they are small.

    Args:
        seed: seed of the curves, the sizes and the order of reports.
    """

    def __init__(self, search: Search, seed: int) -> None:
        self._curves, self._seed = Configurations(seed), seed
        super().__init__(search, seed, self._accuracy)

    def suggestion(self, number: int) -> Hyperparameters:
        """Return the number of a model."""
        return {"number": number}

    def metrics(self, hyperparams: Hyperparameters, value: float) -> dict[str, float]:
        """Return both objectives."""
        return {"accuracy": value, "size": self._size(hyperparams)}

    def _size(self, hyperparams: Hyperparameters) -> float:
        """Return a size on a logarithmic scale from 0 to 1."""
        return random.Random(f"{self._seed}/{hyperparams['number']}/size").random()

    def _accuracy(self, hyperparams: Hyperparameters, epoch: int) -> float:
        number = hyperparams["number"]
        assert isinstance(number, int)
        lacking = _GAIN * (1 - self._size(hyperparams)) ** 2
        return self._curves.measured(number, epoch) - lacking

    def area(self) -> float:
        """Return the area that the trained models dominate."""
        found = [
            (1 - self._accuracy(model.hyperparams, model.trained), self._size(model.hyperparams))
            for model in self.models.values()
            if model.trained
        ]
        return hypervolume(found, (1.0, 1.0))


def _area(procedure: ProcedureChoice, seed: int, budget: int) -> float:
    """Return the area that the models dominate once they have trained this number of epochs."""
    search = Search(
        SearchRequest(procedure=procedure, space=SPACE),
        epochs=_EPOCHS,
        metric="accuracy",
        mode="max",
        seed=seed,
        workers=_WORKERS,
        criteria=_CRITERIA,
    )
    run = _World(search, seed)
    while sum(model.trained for model in run.models.values()) < budget and run.step():
        pass
    return run.area()
