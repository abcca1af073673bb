"""Conditional spaces: TPE in Cerebro against Optuna alone, on published functions with conditional parameters.

Optuna's studies run as its users write them, with define-by-run objectives and `TPESampler`. Both sides ask for four
models at a time and see only the values of completed ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.figure import Figure
from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import TPE, ChoiceOf, Distribution, Space, Uniform
from cerebro.search.history import Past
from cerebro.search.samplers import suggest

SEEDS = range(30)
MODELS, AT_A_TIME, STARTUP = 100, 4, 20
LEVEL = 0.05
"""Level of the test that Cerebro is worse, over all functions."""


def benchmark() -> list[Figure]:
    """Return the smallest adjusted p-value of the hypothesis that Cerebro is worse, for both kinds of Optuna's TPE."""
    found = {name: [_cerebro(name, seed) for seed in SEEDS] for name in FUNCTIONS}
    return [
        _figure(found, "with the same options", {"multivariate": True, "group": True, "constant_liar": True}),
        _figure(found, "with its default options", {}),
    ]


def _figure(found: Mapping[str, list[float]], how: str, options: dict[str, Any]) -> Figure:
    from scipy.stats import wilcoxon

    p_values, notes, wins = [], [], 0
    for name, ours in found.items():
        theirs = [_optuna(name, seed, options) for seed in SEEDS]
        differences = [one - other for one, other in zip(ours, theirs, strict=True)]
        p_values.append(float(wilcoxon(differences, alternative="greater", zero_method="zsplit").pvalue))
        better = sum(each < 0 for each in differences)
        wins += better
        notes.append(
            f"{name}: median distance to the optimum {_median(ours):.2g}, Optuna {_median(theirs):.2g}; better in "
            f"{better} of {len(SEEDS)} seeds, p = {p_values[-1]:.2g}"
        )
    return Figure(
        what=f"conditional: TPE is worse than Optuna alone, {how}: smallest p-value (Bonferroni)",
        measured=f"{len(FUNCTIONS)} functions, {len(SEEDS)} seeds, {MODELS} models, Wilcoxon's signed-rank test; "
        f"Cerebro is better in {wins} of {len(FUNCTIONS) * len(SEEDS)} searches",
        ratio=min(1.0, len(p_values) * min(p_values)),
        bar=LEVEL,
        sense="at least",
        notes=tuple(notes),
    )


def _median(values: list[float]) -> float:
    middle = sorted(values)[(len(values) - 1) // 2 : len(values) // 2 + 1]
    return sum(middle) / len(middle)


def _cerebro(name: str, seed: int) -> float:
    """Return the distance of the best value to the optimum."""
    function, space, optimum = FUNCTIONS[name]
    history: list[Past] = []
    while len(history) < MODELS:
        numbers = range(len(history), len(history) + AT_A_TIME)
        history += [
            Past(hyperparams=each, scores={1: -function(each)}, is_running=False)
            for each in suggest(TPE(startup=STARTUP), space, history, numbers, seed)
        ]
    return -max(past.scores[1] for past in history) - optimum


def _optuna(name: str, seed: int, options: dict[str, Any]) -> float:
    """Return the distance of the best value to the optimum."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    function, space, optimum = FUNCTIONS[name]
    sampler = optuna.samplers.TPESampler(seed=1000 + seed, n_startup_trials=STARTUP, **options)
    study = optuna.create_study(sampler=sampler)
    while len(study.trials) < MODELS:
        asked = [(trial, _suggested(trial, space)) for trial in (study.ask() for _ in range(AT_A_TIME))]
        for trial, values in asked:
            study.tell(trial, function(values))
    return study.best_value - optimum


def _suggested(trial: Any, space: Space) -> Hyperparameters:
    values: Hyperparameters = {}
    for name, distribution in space.items():
        if distribution.applies(values):
            values[name] = _value(trial, name, distribution)
    return values


def _value(trial: Any, name: str, distribution: Distribution) -> Any:
    if isinstance(distribution, ChoiceOf):
        return trial.suggest_categorical(name, distribution.values)
    return trial.suggest_float(name, distribution.low, distribution.high)


# --- functions, to minimize ----------------------------------------------------------------------


def _number(values: Hyperparameters, name: str) -> float:
    number = values[name]
    assert isinstance(number, int | float)
    return number


def jenatton(values: Hyperparameters) -> float:
    """Return the tree of Jenatton et al., *Bayesian Optimization with Tree-structured Dependencies*, ICML 2017."""
    if values["x1"] == 0:
        leaf, offset = ("x4", 0.1) if values["x2"] == 0 else ("x5", 0.2)
        return _number(values, leaf) ** 2 + offset + _number(values, "r8")
    leaf, offset = ("x6", 0.3) if values["x3"] == 0 else ("x7", 0.4)
    return _number(values, leaf) ** 2 + offset + _number(values, "r9")


def q1_choice(values: Hyperparameters) -> float:
    """Return Hyperopt's test function of this name (Bergstra et al., ICML 2013): a quadratic function per branch."""
    if values["branch"] == "negative":
        return (-3 - _number(values, "x_neg")) ** 2
    return (3 - _number(values, "x_pos")) ** 2


def gauss_wave2(values: Hyperparameters) -> float:
    """Return Hyperopt's test function of this name, without noise: one branch adds a wave of any amplitude."""
    x = _number(values, "x")
    found = 2 * math.exp(-((x / 5) ** 2))
    return -found if values["hf"] == "flat" else -found - math.sin(x) * _number(values, "amp")


def _lowest_wave() -> float:
    points = (place / 10_000 for place in range(-200_000, 200_001))
    return min(gauss_wave2({"x": x, "hf": "wave", "amp": 1.0}) for x in points)


def _bit(**when: int) -> ChoiceOf:
    return ChoiceOf(values=(0, 1), when={name: (value,) for name, value in when.items()})


def _unit(low: float, **when: Any) -> Uniform:
    return Uniform(low=low, high=1, when={name: (value,) for name, value in when.items()})


FUNCTIONS: Mapping[str, tuple[Callable[[Hyperparameters], float], Space, float]] = {
    "jenatton": (
        jenatton,
        {
            "x1": _bit(),
            "x2": _bit(x1=0),
            "x3": _bit(x1=1),
            "x4": _unit(-1, x1=0, x2=0),
            "x5": _unit(-1, x1=0, x2=1),
            "x6": _unit(-1, x1=1, x3=0),
            "x7": _unit(-1, x1=1, x3=1),
            "r8": _unit(0, x1=0),
            "r9": _unit(0, x1=1),
        },
        0.1,
    ),
    "q1_choice": (
        q1_choice,
        {
            "branch": ChoiceOf(values=("negative", "positive")),
            "x_neg": Uniform(low=-5, high=5, when={"branch": ("negative",)}),
            "x_pos": Uniform(low=-5, high=5, when={"branch": ("positive",)}),
        },
        0.0,
    ),
    "gauss_wave2": (
        gauss_wave2,
        {
            "x": Uniform(low=-20, high=20),
            "hf": ChoiceOf(values=("flat", "wave")),
            "amp": _unit(0, hf="wave"),
        },
        _lowest_wave(),
    ),
}
"""Function, space and smallest value."""
