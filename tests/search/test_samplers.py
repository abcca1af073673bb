"""Samplers: suggestions are reproducible, inside the space, and use past results."""

from __future__ import annotations

import math
from collections.abc import Iterable

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import BaseDistribution, FloatDistribution

from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import (
    CMA,
    GP,
    TPE,
    ChoiceOf,
    LogUniform,
    RandInt,
    RandomSampler,
    Sampler,
    Space,
    Uniform,
)
from cerebro.search.history import Past, observations
from cerebro.search.samplers import suggest
from cerebro.search.samplers.dimensions import generator_seed

NUMBERS: Space = {
    "lr": LogUniform(low=1e-5, high=1e-1),
    "drop": Uniform(low=0, high=1),
    "layers": RandInt(low=1, high=8),
    "batch_size": ChoiceOf(values=(32,)),
}
MIXED: Space = {
    **NUMBERS,
    "act": ChoiceOf(values=("relu", 1, [2, 3], None)),
    "width": ChoiceOf(values=(16, 32, 64)),
}
SAMPLERS: list[tuple[Sampler, Space]] = [
    (RandomSampler(), MIXED),
    (TPE(startup=5), MIXED),
    (CMA(), NUMBERS),
    pytest.param(GP(startup=5), MIXED, marks=pytest.mark.slow),  # type: ignore[list-item] # imports torch
]


def goodness(hyperparams: Hyperparameters) -> float:
    """Return a score with its maximum at lr = 1e-3, drop = 0.2 and four layers."""
    lr, drop, layers = (float(hyperparams[name]) for name in ("lr", "drop", "layers"))  # type: ignore[arg-type]
    return -(((math.log10(lr) + 3) / 4) ** 2 + (drop - 0.2) ** 2 + ((layers - 4) / 8) ** 2)


def past(space: Space, count: int, *, epoch: int = 1) -> list[Past]:
    """Return models with random hyperparameters and their scores."""
    return [
        Past(hyperparams=each, scores={epoch: goodness(each)}, is_running=False)
        for each in suggest(RandomSampler(), space, (), range(count), 11)
    ]


@pytest.mark.parametrize(("choice", "space"), SAMPLERS)
def test_the_same_request_has_the_same_answer(choice: Sampler, space: Space) -> None:
    """Another number or seed gives another suggestion."""
    history = past(space, 24)
    first = suggest(choice, space, history, range(24, 27), 3)
    assert first == suggest(choice, space, history, range(24, 27), 3)
    assert first[:1] == suggest(choice, space, history, range(24, 25), 3)
    assert first != suggest(choice, space, history, range(24, 27), 4)
    assert len({repr(each) for each in first}) == 3


@pytest.mark.parametrize(("choice", "space"), SAMPLERS)
def test_suggestions_are_within_the_space(choice: Sampler, space: Space) -> None:
    """Names follow the order of the space, and fixed values stay fixed."""
    for each in suggest(choice, space, past(space, 24), range(24, 32), 3):
        assert list(each) == list(space)
        assert each["batch_size"] == 32
        for name, among in space.items():
            value = each[name]
            if isinstance(among, ChoiceOf):
                assert value in among.values
            else:
                assert isinstance(value, int if isinstance(among, RandInt) else float)
                assert among.low <= value <= among.high


def converged(choice: Sampler, space: Space, *, rounds: int, width: int) -> tuple[float, float]:
    """Return the mean goodness of the last quarter of suggestions and of as many random ones."""
    history: list[Past] = []
    for _ in range(rounds):
        numbers = range(len(history), len(history) + width)
        drawn = suggest(choice, space, history, numbers, 5)
        history += [Past(hyperparams=each, scores={1: goodness(each)}, is_running=False) for each in drawn]
    last = history[-rounds * width // 4 :]
    at_random = suggest(RandomSampler(), space, (), range(200), 5)
    return _mean(each.hyperparams for each in last), _mean(at_random)


def _mean(configurations: Iterable[Hyperparameters]) -> float:
    found = [goodness(each) for each in configurations]
    return sum(found) / len(found)


@pytest.mark.parametrize(("choice", "space"), [(TPE(startup=10), MIXED), (CMA(), NUMBERS)])
def test_suggestions_use_past_results(choice: Sampler, space: Space) -> None:
    """Later suggestions are several times closer to the optimum than random ones."""
    found, at_random = converged(choice, space, rounds=16, width=4)
    assert found > at_random / 3


def test_the_first_suggestions_are_random() -> None:
    """Either fewer than `startup` models are measured, or they share no epoch."""
    at_random = suggest(RandomSampler(), MIXED, (), range(9, 10), 3)
    assert suggest(TPE(startup=10), MIXED, past(MIXED, 9), range(9, 10), 3) == at_random
    assert suggest(TPE(startup=9), MIXED, past(MIXED, 9), range(9, 10), 3) != at_random
    apart = [
        Past(hyperparams=each.hyperparams, scores={number: 0.5})
        for number, each in enumerate(past(MIXED, 9), start=1)
    ]
    assert suggest(TPE(startup=9), MIXED, apart, range(9, 10), 3) == at_random


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.integers(1, 9), st.floats(0, 1), max_size=4), st.booleans(), st.booleans()
        ),
        max_size=20,
    ),
    st.integers(1, 6),
)
@settings(max_examples=60)
def test_values_are_compared_at_the_last_epoch_of_enough_models(
    models: list[tuple[dict[int, float], bool, bool]], least: int
) -> None:
    """Failed models rank worst, running models have no value, and stopped models are ignored."""
    history = [
        Past(hyperparams={"x": place}, scores=scores, is_failed=failed, is_running=running and not failed)
        for place, (scores, failed, running) in enumerate(models)
    ]
    alive = [each for each in history if not each.is_failed]
    levels = [e for e in range(1, 10) if sum(e in each.scores for each in alive) >= least]
    found = observations(history, least)
    if not levels:
        assert found is None
        return
    assert found is not None
    level = max(levels)
    assert {values["x"]: score for values, score in found.scored} == {
        **{each.hyperparams["x"]: each.scores[level] for each in alive if level in each.scores},
        **{
            each.hyperparams["x"]: min(other.scores[level] for other in alive if level in other.scores)
            for each in history
            if each.is_failed
        },
    }
    assert [values["x"] for values in found.running] == [
        each.hyperparams["x"] for each in history if each.is_running and level not in each.scores
    ]


def test_tpe_suggests_what_an_optuna_study_with_the_same_trials_suggests() -> None:
    """Requested models count as the newest trials, so suggestions at the same time differ from each other."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space: Space = {name: Uniform(low=0, high=1) for name in "xy"}
    axes: dict[str, BaseDistribution] = {name: FloatDistribution(0, 1) for name in space}
    history = [
        Past(hyperparams=each, scores={1: -abs(float(each["x"]) - 0.3)}, is_running=False)  # type: ignore[arg-type]
        for each in suggest(RandomSampler(), space, (), range(40), 5)
    ]
    study = optuna.create_study(direction="maximize")
    study.add_trials(
        optuna.create_trial(params=dict(past.hyperparams), distributions=axes, value=past.scores[1])
        for past in history
    )
    expected = []
    for number in range(40, 46):
        study.sampler = optuna.samplers.TPESampler(
            seed=generator_seed(3, number), n_startup_trials=1, multivariate=True, constant_liar=True
        )
        expected.append(study.ask(axes).params)
    assert suggest(TPE(startup=10), space, history, range(40, 46), 3) == expected
