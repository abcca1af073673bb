"""The samplers `cerebro.TPE` and `cerebro.GP`, by Optuna's samplers without its storage.

Each suggestion builds a new sampler from the whole history, so no sampler state is stored. `_PastTrials` returns
past trials without copying: Optuna's in-memory storage copies each trial, which takes longer than a
suggestion.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, GPSampler, TPESampler
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, TrialState
from pydantic import JsonValue

from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import GP, TPE, ChoiceOf, Distribution, LogUniform, RandInt
from cerebro.search.history import Observations
from cerebro.search.samplers.dimensions import generator_seed

_FIRST = 1_000_000
"""Number of the first past trial. Requested trials count from 0."""
_WHEN = datetime.datetime(2000, 1, 1)
"""Optuna requires end times of trials but does not use them."""


class _PastTrials(InMemoryStorage):
    """In-memory storage with a fixed list of past trials."""

    def __init__(self, trials: Sequence[FrozenTrial]) -> None:
        super().__init__()
        self._past_trials = trials

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """Return the past trials, not copied, and then the stored ones."""
        trials = [trial for trial in self._past_trials if states is None or trial.state in states]
        return trials + super().get_all_trials(study_id, deepcopy, states)


def optuna_suggestions(
    choice: TPE | GP,
    dimensions: Mapping[str, Distribution],
    observations: Observations,
    numbers: Sequence[int],
    seed: int,
) -> list[Hyperparameters]:
    """Return values of the dimensions for each number. Each suggestion counts earlier numbers as running."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    axes = {name: _axis(each) for name, each in dimensions.items()}
    coordinates = {name: _coordinate(each) for name, each in dimensions.items()}
    past_trials = [
        _trial(place, axes, {name: of(hyperparams[name]) for name, of in coordinates.items()}, score)
        for place, (hyperparams, score) in enumerate(_all(observations))
    ]
    study = optuna.create_study(storage=_PastTrials(past_trials), direction="maximize")
    found = []
    for number in numbers:
        study.ask()
        trial = study.get_trials(deepcopy=False)[-1]
        sampler = _sampler(choice, generator_seed(seed, number))
        values = sampler.sample_relative(study, trial, axes)
        found.append({name: _value(each, values[name]) for name, each in dimensions.items()})
    return found


def _sampler(choice: TPE | GP, seed: int) -> BaseSampler:
    # The caller has checked that the history is long enough; 1 turns off Optuna's own random startup.
    if isinstance(choice, GP):
        return GPSampler(seed=seed, n_startup_trials=1)
    return TPESampler(
        seed=seed,
        n_startup_trials=1,
        n_ei_candidates=choice.candidates,
        multivariate=True,
        constant_liar=True,
    )


def _all(observations: Observations) -> list[tuple[Hyperparameters, float | None]]:
    return [*observations.scored, *((hyperparams, None) for hyperparams in observations.running)]


def _trial(
    place: int, axes: dict[str, BaseDistribution], params: dict[str, Any], score: float | None
) -> FrozenTrial:
    return FrozenTrial(
        number=_FIRST + place,
        trial_id=_FIRST + place,
        state=TrialState.RUNNING if score is None else TrialState.COMPLETE,
        value=score,
        datetime_start=_WHEN,
        datetime_complete=None if score is None else _WHEN,
        params=params,
        distributions=axes,
        user_attrs={},
        system_attrs={},
        intermediate_values={},
    )


def _axis(distribution: Distribution) -> BaseDistribution:
    """Represent a choice by its index.

    Values may have any type, and 1, 1.0 and True are equal.
    """
    if isinstance(distribution, ChoiceOf):
        return CategoricalDistribution(range(len(distribution.values)))
    if isinstance(distribution, RandInt):
        return IntDistribution(distribution.low, distribution.high)
    return FloatDistribution(distribution.low, distribution.high, log=isinstance(distribution, LogUniform))


def _coordinate(distribution: Distribution) -> Callable[[Any], Any]:
    """Return a function from a value to its coordinate on the axis."""
    if isinstance(distribution, ChoiceOf):
        return distribution.values.index
    if isinstance(distribution, RandInt):
        return int
    low, high = distribution.low, distribution.high
    return lambda value: low if value < low else high if value > high else value


def _value(distribution: Distribution, coordinate: Any) -> JsonValue:
    if isinstance(distribution, ChoiceOf):
        return distribution.values[int(coordinate)]
    return int(coordinate) if isinstance(distribution, RandInt) else float(coordinate)
