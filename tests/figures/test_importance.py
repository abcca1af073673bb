"""Hyperparameter importance on grids and random searches with known answers."""

from __future__ import annotations

import math
from itertools import product
from random import Random
from statistics import mean

import pytest

from cerebro.contract.records import Hyperparameters
from cerebro.figures import Importance, ModelSummary
from cerebro.figures import importance_of as importance
from cerebro.figures.importance import MINIMUM, _chi_squared
from tests.figures.samples import row


def shares(found: Importance) -> dict[str, float]:
    return {share.name: share.share for share in found.shares}


def models(given: list[tuple[Hyperparameters, float]]) -> list[ModelSummary]:
    return [row(index, value, hyperparams) for index, (hyperparams, value) in enumerate(given)]


def grid() -> list[tuple[float, int, str]]:
    return list(product([0.001, 0.01, 0.1], [16, 32, 64], ["relu", "gelu", "tanh"]))


def test_on_a_grid_only_the_decisive_hyperparameter_is_important() -> None:
    """The objective depends only on the learning rate."""
    found = importance(
        models([({"lr": lr, "width": w, "act": a}, abs(lr - 0.01)) for lr, w, a in grid()]), mode="min"
    )
    assert shares(found)["lr"] == pytest.approx(1.0)
    assert found.shares[0].name == "lr"
    assert sum(shares(found).values()) == pytest.approx(1.0)


def test_in_a_random_search_numbers_and_words_are_compared_fairly() -> None:
    """Many distinct values alone do not make a hyperparameter important."""
    random = Random(5)
    found = []
    for seed in range(20):
        given: list[tuple[Hyperparameters, float]] = []
        for number in range(60):
            lr, act = 10 ** random.uniform(-5, -1), random.choice(["relu", "gelu"])
            noise: Hyperparameters = {"seed": number + 1000 * seed, "momentum": random.random()}
            given.append(
                ({"lr": lr, "act": act, **noise}, (0.0 if act == "relu" else 1.0) + random.random() * 0.3)
            )
        found.append(shares(importance(models(given), mode="min")))
    assert mean(one["act"] for one in found) > 0.75
    assert max(mean(one[name] for one in found) for name in ("seed", "momentum", "lr")) < 0.1


def test_models_without_a_number_are_one_bin() -> None:
    """A conditional number is compared where models have it: many distinct values alone do not make it important."""
    random, found = Random(5), []
    for _ in range(20):
        given: list[tuple[Hyperparameters, float]] = []
        for _ in range(60):
            net = random.choice(["cnn", "vit"])
            drop: Hyperparameters = {"drop": random.random()} if net == "vit" else {}
            given.append(({"net": net, "lr": random.random(), **drop}, random.random() + (net == "vit")))
        found.append(shares(importance(models(given), mode="min")))
    assert mean(one["net"] for one in found) > mean(one["drop"] for one in found) > 0.2
    assert mean(one["lr"] for one in found) < 0.1


def test_noise_has_no_importance() -> None:
    """The significance limit lets about one in twenty random runs through: see `importance`."""
    random, runs, answers = Random(7), 300, 0
    for _ in range(runs):
        given: list[tuple[Hyperparameters, float]] = [
            (
                {
                    "lr": 10 ** random.uniform(-5, -1),
                    "momentum": random.random(),
                    "width": random.choice([16, 32, 64, 128]),
                    "act": random.choice(["relu", "gelu", "tanh"]),
                    "is_deep": random.random() < 0.5,
                },
                random.random(),
            )
            for _ in range(64)
        ]
        answers += bool(importance(models(given), mode="min").shares)
    assert answers <= 0.08 * runs


def test_irrelevant_hyperparameters_have_no_share() -> None:
    """Next to a decisive hyperparameter, irrelevant ones usually have a share of zero."""
    random, without = Random(8), 0
    for _ in range(50):
        given: list[tuple[Hyperparameters, float]] = [
            (
                {"lr": (lr := 10 ** random.uniform(-5, -1)), "momentum": random.random()},
                abs(math.log10(lr) + 3),
            )
            for _ in range(64)
        ]
        found = shares(importance(models(given), mode="min"))
        assert found["lr"] > 0.75
        without += found["momentum"] == 0.0
    assert without >= 45


@pytest.mark.parametrize(
    ("freedom", "probability", "quantile"),
    [(1, 0.95, 3.841), (1, 0.99, 6.635), (2, 0.99, 9.210), (5, 0.99, 15.086), (63, 0.95, 82.529)],
)
def test_quantiles_match_the_statistical_tables(freedom: int, probability: float, quantile: float) -> None:
    """Within 3 %; the approximation is worst for one degree of freedom."""
    assert _chi_squared(freedom, probability) == pytest.approx(quantile, rel=0.03)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([({"lr": float(i)}, float(i)) for i in range(MINIMUM - 1)], "needs 16 models with a value that"),
        ([({"lr": 0.1}, float(i)) for i in range(20)], "no hyperparameter varies"),
        ([({"lr": float(i % 4)}, 1.0) for i in range(20)], "equally good"),
        ([({"lr": float(i)}, float(i % 5)) for i in range(20)], "better than chance"),
    ],
)
def test_importance_gives_a_reason_when_it_is_unknown(
    given: list[tuple[Hyperparameters, float]], reason: str
) -> None:
    """Instead of naming an arbitrary winner."""
    found = importance(models(given), mode="min")
    assert found.shares == ()
    assert reason in found.declined
