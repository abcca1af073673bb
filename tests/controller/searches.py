"""Simulated fits with a search, in virtual time."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from cerebro.contract.events import ClientEvent, RunStarted
from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.runs import Constraint, EarlierModel, EarlierRun, FitPlan, FitRequest
from cerebro.contract.search import ChoiceOf, LogUniform, ProcedureChoice, Repeat, SearchRequest, Space
from cerebro.contract.tasks.bodies import EtlTask, EvaluateTask, TaskBody, TrainTask
from cerebro.state import Run
from cerebro.state.experiment import fold
from research.simulation.cluster import Simulation
from research.simulation.scenario import DATASET, EXPERIMENT, Neighbour, Scenario

WORKERS = 3

EARLIER = EarlierRun(
    run="one/fit-1",
    models=tuple(
        EarlierModel(hyperparams={"lr": lr, "batch_size": 1}, values={2: {"loss": abs(lr - 0.01)}})
        for lr in (0.0002, 0.001, 0.005, 0.01, 0.02, 0.1, 0.5)
    ),
    unused={"without a value": 2, "with lr outside the search space": 1},
)
"""An earlier fit for `search_of`."""


def loss(body: TaskBody) -> Mapping[str, float]:
    """Return a loss that is lower near a learning rate of 0.01 and after more epochs, with some noise."""
    if isinstance(body, EtlTask):
        return {}
    assert isinstance(body, TrainTask | EvaluateTask)
    lr, epoch = float(body.hyperparams["lr"]), body.epoch  # type: ignore[arg-type]
    noise = random.Random(f"{lr}/{epoch}").random()
    return {"loss": abs(math.log10(lr) + 2) + 1 / (1 + epoch) + 0.01 * noise}


def search_of(procedure: ProcedureChoice, *, samples: int | None = None, **more: Any) -> SearchRequest:
    """Search learning rates from 0.0001 to 1."""
    space: Space = {"lr": LogUniform(low=1e-4, high=1), "batch_size": ChoiceOf(values=(1,))}
    return SearchRequest(procedure=procedure, space=space, samples=samples, **more)


def simulation(
    search: SearchRequest | None,
    *,
    epochs: int,
    models: tuple[dict[str, Any], ...] = (),
    is_validated: bool = False,
    seed: int = 0,
    repeats: Repeat | None = None,
    constraints: tuple[Constraint, ...] = (),
    parallel_plans: tuple[ParallelPlan, ...] = (),
    earlier: tuple[EarlierRun, ...] = (),
    neighbours: Sequence[Neighbour] = (),
    kind: type[Simulation] = Simulation,
    **scenario: Any,
) -> Simulation:
    """Simulate a fit with one partition per worker, and other runs next to it."""
    request = FitRequest(
        code="0" * 64,
        models=models,
        epochs=epochs,
        metric="loss",
        mode="min",
        search=search,
        seed=seed,
        planner=False,
        repeats=repeats,
        constraints=constraints,
    )
    plan = FitPlan(
        dataset=DATASET,
        models={f"m{number:02}": each for number, each in enumerate(models)},
        partitions=dict.fromkeys(range(WORKERS), 10),
        valid_partitions=(0,) if is_validated else (),
        parallel_plans=parallel_plans,
        earlier=earlier,
    )
    replicas = {f"worker-{number}": [number] for number in range(WORKERS)}
    world = Scenario(**{"replicas": replicas, "metrics": loss, **scenario})
    return kind(world, request, RunStarted(run="fit-1", plan=plan), neighbours=neighbours)


def request_at(sim: Simulation, at: float, event: ClientEvent) -> None:
    """Send a user's request at a time."""

    def now() -> None:
        sim.store.append(EXPERIMENT, event)

    sim._at(at, now)


def fit_of(sim: Simulation) -> Run:
    """Run the simulation and return the fit as the log records it."""
    sim.run(limit=20_000)
    # A controller that crashed at its last write has not read the log.
    return fold(EXPERIMENT, sim.log).runs["fit-1"]


def story(run: Run) -> tuple[object, object, object]:
    """Return a search's models, their epochs, and its decisions."""
    assert run.search is not None
    models = [(m.id, m.hyperparams, m.epochs, m.completed_epochs, m.state) for m in run.models.values()]
    said = [each.model_copy(update={"seq": 0, "time": 0.0}) for each in run.search.decisions]
    return models, said, run.search.verdicts
