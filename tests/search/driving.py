"""A simulated run that executes a search's actions and reports the results.

It replaces the fold and the workers. A seeded generator picks the next action, so reports arrive in every
valid action.
"""

from __future__ import annotations

import random
from typing import Any, Literal

from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import (
    LogUniform,
    OwnProcedure,
    ProcedureChoice,
    RandInt,
    SearchRequest,
    Space,
    Uniform,
)
from cerebro.search.transducer import Search
from cerebro.testing.simulated_run import SimulatedRun, score
from tests.search.own_procedures import Halving

SPACE: Space = {
    "lr": LogUniform(low=1e-4, high=1e-1),
    "width": RandInt(low=1, high=64),
    "drop": Uniform(low=0, high=1),
}


def search_request(
    procedure: ProcedureChoice, *, samples: int | None = None, **settings: Any
) -> SearchRequest:
    return SearchRequest(procedure=procedure, space=SPACE, samples=samples, **settings)


def search_of(
    request: SearchRequest, *, epochs: int = 27, mode: Literal["min", "max"] = "max", workers: int = 2
) -> Search:
    own_procedure = Halving() if isinstance(request.procedure, OwnProcedure) else None
    return Search(
        request,
        epochs=epochs,
        metric="score",
        mode=mode,
        seed=7,
        workers=workers,
        user_procedure=own_procedure,
    )


class Run(SimulatedRun):
    """A run over `SPACE`; models of users are easy to recognise by their width."""

    def suggestion(self, number: int) -> Hyperparameters:
        rng = random.Random(f"suggest/{number}")
        return {"lr": rng.random(), "width": number, "drop": 0.5}

    def changed(self, hyperparams: Hyperparameters) -> Hyperparameters:
        return {**hyperparams, "lr": self.rng.random(), "width": "wide"}


__all__ = ["SPACE", "Run", "score", "search_of", "search_request"]
