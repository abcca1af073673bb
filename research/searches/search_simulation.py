"""The controller's core on a search in virtual time.

Procedure, sampler, decisions, dispatch, log and store are the live ones; a model's hyperparameters determine its
sub-epoch times and accuracy (`research.searches.searches`). A suggestion takes no virtual time. ``python -m research
simulate search`` runs it.
"""

from __future__ import annotations

import math
import random

from cerebro.contract.events import Event, RunStarted, SearchDecided, TaskCommitted, TaskStarted
from cerebro.contract.runs import FitPlan, FitRequest
from cerebro.contract.search import SearchRequest
from cerebro.contract.tasks.bodies import EvaluateTask, TaskBody, TrainTask
from cerebro.errors import InstanceError
from cerebro.scheduling.conditions import Conditions
from cerebro.state import Run, RunState
from cerebro.state.tasks.keys import TaskKey
from research.searches.searches import VALIDATION, Outcome, curve_of
from research.simulation.cluster import Simulation
from research.simulation.scenario import DATASET, Scenario, WorkerOutage

_ROWS = 10_000
"""Rows of a partition."""
_LEASE_S = 0.5
"""Silence of a lost worker: half a typical epoch."""
_LIMIT = 100_000_000
_METRIC = "accuracy"


def run(search: SearchRequest, *, epochs: int, workers: int, seed: int, conditions: Conditions) -> Outcome:
    """Simulate a fit with a search, with one partition per worker.

    Args:
        search: search over the hyperparameters of `curve_of`; ``batch_size`` is 1.
        epochs: maximum epochs of a model.
        seed: seed of the suggestions, the measurements and the real sub-epoch durations.
        conditions: failures during the run; stragglers are ignored.

    Raises:
        InstanceError: the run did not finish, for example because a sampler's library is missing.
    """
    names = [f"worker-{number:05}" for number in range(workers)]
    sigma = conditions.sigma

    def seconds(body: TaskBody, _worker: str) -> float:
        assert isinstance(body, TrainTask | EvaluateTask)
        epoch_s = curve_of(body.hyperparams).epoch_s
        if isinstance(body, EvaluateTask):
            return VALIDATION * epoch_s
        rng = random.Random(f"{seed}/{body.model}/{body.epoch}/{body.partition}")
        return epoch_s / workers * math.exp(sigma * rng.gauss(0, 1) - sigma * sigma / 2)

    def metrics(body: TaskBody) -> dict[str, float]:
        assert isinstance(body, TrainTask | EvaluateTask)
        return {_METRIC: curve_of(body.hyperparams).measured(body.epoch, seed=f"{seed}/{body.model}")}

    absences = {name: conditions.absences(number) for number, name in enumerate(names)}
    request = FitRequest(
        code="0" * 64,
        models=(),
        epochs=epochs,
        metric=_METRIC,
        mode="max",
        search=search,
        seed=seed,
        planner=False,
        max_attempts=1000,
    )
    plan = FitPlan(
        dataset=DATASET,
        models={},
        partitions=dict.fromkeys(range(workers), _ROWS),
        valid_partitions=tuple(range(workers)),
    )
    scenario = Scenario(
        replicas={name: [number] for number, name in enumerate(names)},
        sub_epoch_time=seconds,
        metrics=metrics,
        outages=[
            WorkerOutage(worker=name, start=start, length=end - start)
            for name, away in absences.items()
            for start, end in away
            if start > 0
        ],
        joins={name: away[0][1] for name, away in absences.items() if away and not away[0][0]},
        lease_s=_LEASE_S,
    )
    simulation = Simulation(scenario, request, RunStarted(run="fit-1", plan=plan))
    found = simulation.run(limit=_LIMIT).runs["fit-1"]
    if found.state is not RunState.FINISHED:
        raise InstanceError(f"the search did not finish: {found.failures.error or found.state}")
    return _outcome(simulation.log, found, absences)


def _outcome(log: tuple[Event, ...], run: Run, absences: dict[str, list[tuple[float, float]]]) -> Outcome:
    started: dict[tuple[str, int], float] = {}
    spans: list[tuple[float, float]] = []
    best: list[tuple[float, float]] = []
    epochs, horizon = 0, 0.0
    for event in log:
        match event:
            case SearchDecided(add=add) if add:
                horizon = event.time
            case TaskStarted():
                started[event.task, event.attempt] = event.time
            case TaskCommitted():
                spans.append((started[event.task, event.attempt], event.time))
                key = TaskKey.parse(event.task)
                if key.kind == "valid":
                    epochs += 1
                    assert key.model is not None
                    assert key.epoch is not None
                    true = curve_of(run.models[key.model].hyperparams).accuracy(key.epoch)
                    if not best or true > best[-1][1]:
                        best.append((event.time, true))
    makespan = max(end for _, end in spans)

    def busy(until: float) -> float:
        present = sum(until - _within(away, until) for away in absences.values())
        return _within(spans, until) / present

    return Outcome(
        trials=len(run.models),
        epochs=epochs,
        busy=busy(makespan),
        busy_drawing=busy(horizon) if horizon else None,
        makespan_s=makespan,
        best=best,
    )


def _within(spans: list[tuple[float, float]], horizon: float) -> float:
    """Return the seconds of the spans before the horizon."""
    return sum(max(0.0, min(end, horizon) - start) for start, end in spans)
