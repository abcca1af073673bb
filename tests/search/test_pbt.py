"""Population-based training: clones of the best models replace the worst ones."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from cerebro.contract.search import PBT, ChoiceOf, Distribution, LogUniform, RandInt, Uniform
from cerebro.search.procedure import Action, Add, Extend, Extended, Facts, Failed, Stop
from cerebro.search.procedures.pbt import perturbed
from tests.search.driving import Run, score, search_of, search_request

CHOICE = PBT(population=8, every=2, quantile=0.25, perturb={"lr": (0.5, 2.0)})


def generations(run: Run) -> list[list[Action]]:
    """Return the actions that end a generation."""
    return [actions for actions in run.actions if any(isinstance(action, Extend) for action in actions)]


@given(seed=st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_a_quarter_is_replaced_after_each_generation(seed: int) -> None:
    """Of eight models, six continue; clones of the best two replace the worst two."""
    run = Run(search_of(search_request(CHOICE), epochs=9), seed).to_the_end()
    levels = (2, 4, 6, 8, 9)
    found = generations(run)
    assert len(found) == len(levels) - 1
    for (level, following), actions in zip(pairwise(levels), found, strict=True):
        extended = [action for action in actions if isinstance(action, Extend)]
        clones = [action for action in actions if isinstance(action, Add)]
        stopped = [action.model for action in actions if isinstance(action, Stop)]
        assert {action.epochs for action in extended} | {action.epochs for action in clones} == {following}
        assert (len(extended), len(stopped)) == (6, 2)
        members = {name: score(run.models[name].hyperparams, level) for name in stopped}
        members |= {action.model: score(run.models[action.model].hyperparams, level) for action in extended}
        ranked = sorted(members, key=lambda name: (-members[name], name))
        assert set(stopped) == set(ranked[6:])
        assert {action.parent for action in clones} <= set(ranked[:2])
        for action in clones:
            assert action.parent
            of = run.models[action.parent].hyperparams
            assert action.hyperparams in ({**of, "lr": clipped(of["lr"], by)} for by in (0.5, 2.0))


def clipped(value: JsonValue, by: float) -> float:
    """Clip to the range of the learning rate."""
    assert isinstance(value, float)
    return min(max(value * by, 1e-4), 1e-1)


def test_a_failed_model_is_replaced() -> None:
    """Three of eight models fail; three clones start and no other model stops."""
    run = Run(search_of(search_request(CHOICE), epochs=4), seed=3)
    while len(run.models) < 8:
        run.suggest()
    for name in ("m000", "m003", "m005"):
        run.models[name].is_failed = True
        run.report(Failed(model=name))
    run.to_the_end()
    (actions,) = generations(run)
    assert [type(action) for action in actions].count(Add) == 3
    assert not any(isinstance(action, Stop) for action in actions)


def test_a_model_that_a_user_extended_is_not_cloned() -> None:
    """Its newest checkpoint may be from a later epoch than the generation's."""
    run = Run(search_of(search_request(PBT(population=2)), epochs=4), seed=3)
    run.suggest()
    run.suggest()
    best, other = sorted(run.models, key=lambda name: -score(run.models[name].hyperparams, 1))
    run.models[best].resource, run.models[best].is_kept = 9, True
    run.report(Extended(model=best, epochs=9, by="ann"))
    run.train(best)
    run.train(best)
    run.train(other)
    clones = [
        action for actions in run.actions for action in actions if isinstance(action, Add) and action.parent
    ]
    assert clones == []
    assert best not in run.requested_stops


@pytest.mark.parametrize(
    ("value", "among", "factor", "expected"),
    [
        (0.01, LogUniform(low=1e-4, high=1e-1), 2.0, 0.02),
        (0.08, LogUniform(low=1e-4, high=1e-1), 2.0, 0.1),
        (0.5, Uniform(low=0.45, high=1), 0.5, 0.45),
        (10, RandInt(low=1, high=64), 1.25, 12),
        (1, RandInt(low=1, high=64), 1.25, 2),
        (1, RandInt(low=1, high=64), 0.8, 1),
        (32, ChoiceOf(values=(16, 32, 64)), 0.8, 16),
        (32, ChoiceOf(values=(16, 32, 64)), 1.25, 64),
        (64, ChoiceOf(values=(16, 32, 64)), 1.25, 64),
        (48, ChoiceOf(values=(16, 32, 64)), 1.25, 48),
        (0.9, LogUniform(low=1e-4, high=1e-1), 0.8, 0.1),
        ("wide", RandInt(low=1, high=64), 1.25, "wide"),
        ("fast", LogUniform(low=1e-4, high=1e-1), 1.25, "fast"),
    ],
)
def test_a_perturbed_value_stays_in_its_range(
    value: JsonValue, among: Distribution, factor: float, expected: JsonValue
) -> None:
    """A number is multiplied, an integer moves by at least one, and a choice moves to a neighbour."""
    facts = Facts(epochs=1, metric="score", mode="max", samples=None, workers=1, seed=0, space={"x": among})
    choice = PBT(perturb={"x": (factor,)})
    found = perturbed({"x": value, "y": 1}, choice, facts, random.Random(0))
    assert found == {"x": expected, "y": 1}
