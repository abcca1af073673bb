"""Searches with several objectives and constraints."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.records import Hyperparameters
from cerebro.contract.runs import Constraint
from cerebro.contract.search import (
    ASHA,
    GP,
    PBT,
    TPE,
    Hyperband,
    ProcedureChoice,
    Random,
    RandomSampler,
    Space,
    Uniform,
)
from cerebro.contract.search_tasks import SuggestionsRequest
from cerebro.search.history import Past
from cerebro.search.pareto import Criteria, Point, hypervolume, order, ranks
from cerebro.search.procedure import Extend, Stop
from cerebro.search.samplers import suggest
from cerebro.search.suggestions import suggestions_request, values_for
from cerebro.search.transducer import Search
from tests.search.driving import Run, search_request

CRITERIA = Criteria(
    objectives={"score": "max", "width": "min"},
    constraints=(Constraint(name="width", operator="<=", limit=40),),
)
SQUARE: Space = {"x": Uniform(low=0, high=1), "y": Uniform(low=0, high=1)}


class WideRun(Run):
    """A run whose models also have a width, from their number."""

    def suggestion(self, number: int) -> Hyperparameters:
        return {**super().suggestion(number), "width": number * 37 % 64}

    def metrics(self, hyperparams: Hyperparameters, value: float) -> dict[str, float]:
        return {"score": value, "width": float(hyperparams["width"])}  # type: ignore[arg-type]


def wide_run(procedure: ProcedureChoice, seed: int, *, samples: int | None = 30) -> WideRun:
    search = Search(
        search_request(procedure, samples=samples),
        epochs=9,
        metric="score",
        mode="max",
        seed=7,
        workers=2,
        criteria=CRITERIA,
    )
    run = WideRun(search, seed)
    run.to_the_end()
    return run


@pytest.mark.parametrize(
    "procedure",
    [ASHA(eta=3), ASHA(eta=3, rule="promotion", brackets=2), Hyperband(eta=3), PBT(population=6), Random()],
    ids=str,
)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=10, deadline=None)
def test_each_procedure_ends_with_fully_trained_models(procedure: ProcedureChoice, seed: int) -> None:
    """Of the models that Hyperband trains to the end, a larger share meets the constraint than of all."""
    run = wide_run(procedure, seed, samples=None if isinstance(procedure, Hyperband) else 30)
    assert run.search.is_finished
    full = [model for model in run.models.values() if model.trained == 9]
    assert full
    if isinstance(procedure, Hyperband):
        share = [model.hyperparams["width"] <= 40 for model in full]  # type: ignore[operator]
        everyone = [model.hyperparams["width"] <= 40 for model in run.models.values()]  # type: ignore[operator]
        assert sum(share) / len(share) > sum(everyone) / len(everyone)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_hyperband_extends_the_best_ranks(seed: int) -> None:
    """No stopped model of a bracket's rung has a better non-dominated rank than an extended one."""
    run = wide_run(Hyperband(eta=3, brackets=1), seed, samples=None)
    for actions in run.actions:
        extended = [action.model for action in actions if isinstance(action, Extend)]
        stopped = [action.model for action in actions if isinstance(action, Stop)]
        if not (extended and stopped):
            continue
        names = extended + stopped
        level = min(run.search.models[name].trained for name in stopped)
        points = [CRITERIA.point(run.search.models[name].metrics[level]) for name in names]
        by_rank = dict(zip(names, ranks(points), strict=True))
        assert max(by_rank[name] for name in extended) <= min(by_rank[name] for name in stopped)


def test_reasons_of_stops_name_all_objectives() -> None:
    """A user sees which values a stopped model had."""
    run = wide_run(ASHA(eta=3), 1)
    reasons = [action.why for actions in run.actions for action in actions if isinstance(action, Stop)]
    assert reasons
    assert all(why.startswith("score ") and ", width " in why for why in reasons)


# --- samplers ---


def values(hyperparams: Hyperparameters) -> Point:
    """Return two objectives whose front is y = 0, and a constraint on x."""
    x, y = (float(hyperparams[name]) for name in "xy")  # type: ignore[arg-type]
    return Point((x + y, (1 - x) ** 2 + y), (0.2 - x,))


def suggested(choice: TPE | RandomSampler, seed: int, count: int = 60) -> list[Point]:
    history: list[Past] = []
    for number in range(count):
        (found,) = suggest(choice, SQUARE, history, [number], seed)
        point = values(found)
        history.append(
            Past(hyperparams=found, scores={1: -point.losses[0]}, points={1: point}, is_running=False)
        )
    return [past.points[1] for past in history]


def area(points: Sequence[Point]) -> float:
    return hypervolume(
        [(point.losses[0], point.losses[1]) for point in points if point.is_feasible], (1.5, 1.5)
    )


def test_tpe_covers_more_of_the_front_than_random_draws() -> None:
    """The mean over seeds of the dominated area is larger, and more suggestions meet the constraint."""
    seeds = range(4)
    by_tpe = [suggested(TPE(startup=10), seed) for seed in seeds]
    at_random = [suggested(RandomSampler(), seed) for seed in seeds]
    assert sum(map(area, by_tpe)) > sum(map(area, at_random))
    feasible = [
        sum(point.is_feasible for points in found for point in points) for found in (by_tpe, at_random)
    ]
    assert feasible[0] > feasible[1]


@pytest.mark.slow
def test_gp_suggests_models_on_the_front() -> None:
    """After random models, its suggestions are almost on the front, meet the constraint and differ."""
    history = [
        Past(
            hyperparams=each, scores={1: -values(each).losses[0]}, points={1: values(each)}, is_running=False
        )
        for each in suggest(RandomSampler(), SQUARE, (), range(16), 3)
    ]
    found = suggest(GP(startup=4), SQUARE, history, range(16, 20), 3)
    assert all(float(each["y"]) < 0.05 for each in found)  # type: ignore[arg-type]
    assert all(float(each["x"]) > 0.15 for each in found)  # type: ignore[arg-type]
    assert len({round(float(each["x"]), 1) for each in found}) > 1  # type: ignore[arg-type]


def test_a_request_for_suggestions_carries_all_objectives() -> None:
    """The answer is the same after a round trip through JSON; failed models count as the worst."""
    history = [
        Past(
            hyperparams={"x": x / 10, "y": y / 10},
            scores={1: -x},
            points={1: values({"x": x / 10, "y": y / 10})},
        )
        for x in range(1, 5)
        for y in range(1, 5)
    ]
    history.append(Past(hyperparams={"x": 0.9, "y": 0.9}, is_failed=True))
    choice = TPE(startup=4)
    request = suggestions_request(choice, SQUARE, history, range(17, 19), 3)
    sent = SuggestionsRequest.model_validate_json(request.model_dump_json())
    assert values_for(sent) == suggest(choice, SQUARE, history, range(17, 19), 3)
    alone = [Past(hyperparams=past.hyperparams, scores=past.scores) for past in history[:-1]]
    assert values_for(sent) != suggest(choice, SQUARE, alone, range(17, 19), 3)


def test_the_order_breaks_ties_by_the_first_objective() -> None:
    """A point without a value is last."""
    found = order([Point((2.0, 1.0)), Point((1.0, 2.0)), Point((math.inf, 3.0))])
    assert found == [1, 0, 2]
