"""The samplers `cerebro.TPE` and `cerebro.GP`, by Optuna's samplers without its storage.

Each suggestion builds a new sampler from the whole history, so no sampler state is stored. `_PastTrials` returns
past trials without copying: Optuna's in-memory storage copies each trial, which takes longer than a
suggestion.

Conditional hyperparameters, as with Optuna's own define-by-run spaces: TPE suggests hyperparameters with the same
conditions together, and learns from the models that have them. Optuna's GP would draw them at random. Here it is fitted
to all models instead, with the middle of the range for a missing value.
"""

from __future__ import annotations

import datetime
import math
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
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from pydantic import JsonValue

from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import GP, TPE, ChoiceOf, Distribution, LogUniform, RandInt
from cerebro.search.grids import nearest
from cerebro.search.history import Observations
from cerebro.search.pareto import Point
from cerebro.search.samplers.dimensions import generator_seed

_CONSTRAINTS = "constraints"
"""Key of a trial's violations in Optuna."""
_FIRST = 1_000_000
"""Id of the first past trial. Ids of requested trials count from 0."""
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
    fill = {name: _middle(each) for name, each in axes.items()} if isinstance(choice, GP) else {}
    past_trials = [
        _trial(
            place,
            axes,
            fill | {name: of(hyperparams[name]) for name, of in coordinates.items() if name in hyperparams},
            values,
            violations,
        )
        for place, (hyperparams, values, violations) in enumerate(_all(observations))
    ]
    points = observations.points
    directions = [StudyDirection.MINIMIZE] * len(points[0].losses) if points else [StudyDirection.MAXIMIZE]
    study = optuna.create_study(storage=_PastTrials(past_trials), directions=directions)
    groups = [list(dimensions)] if isinstance(choice, GP) else _groups(dimensions)
    found = []
    for number in numbers:
        study.ask()
        trial = study.get_trials(deepcopy=False)[-1]
        sampler = _sampler(choice, generator_seed(seed, number))
        suggestion: Hyperparameters = {}
        for group in groups:
            if isinstance(choice, TPE) and not dimensions[group[0]].applies(suggestion):
                continue
            group_axes = {name: axes[name] for name in group}
            values = sampler.sample_relative(study, trial, group_axes)
            suggestion |= {name: _value(dimensions[name], values[name]) for name in group}
            if len(groups) > 1:
                _record(study, trial, group_axes, values)
        found.append(suggestion)
    return found


def _groups(dimensions: Mapping[str, Distribution]) -> list[list[str]]:
    """Return the hyperparameters with the same conditions; each group follows the groups it depends on."""
    groups: dict[str, list[str]] = {}
    for name, distribution in dimensions.items():
        groups.setdefault(repr(sorted(distribution.when.items())), []).append(name)
    return list(groups.values())


def _record(
    study: optuna.Study, trial: FrozenTrial, axes: dict[str, BaseDistribution], values: dict[str, Any]
) -> None:
    """Add values to a requested trial, for later ones: Optuna keeps only those of its last call."""
    for name, axis in axes.items():
        internal = axis.to_internal_repr(values[name])
        study._storage.set_trial_param(trial._trial_id, name, internal, axis)


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


_Trial = tuple[Hyperparameters, tuple[float, ...] | None, tuple[float, ...]]


def _all(observations: Observations) -> list[_Trial]:
    """Return hyperparameters, objectives (`None` for a running model) and violations of each model."""
    points = observations.points or [Point((score,)) for _, score in observations.scored]
    scored = zip(observations.scored, points, strict=True)
    running: list[_Trial] = [(hyperparams, None, ()) for hyperparams in observations.running]
    return [*((hyperparams, *point) for (hyperparams, _), point in scored), *running]


def _trial(
    place: int,
    axes: dict[str, BaseDistribution],
    params: dict[str, Any],
    values: tuple[float, ...] | None,
    violations: tuple[float, ...],
) -> FrozenTrial:
    return FrozenTrial(
        # Requested trials count from 0. TPE gives old trials little weight, so past ones need lower numbers.
        number=place - _FIRST,
        trial_id=_FIRST + place,
        state=TrialState.RUNNING if values is None else TrialState.COMPLETE,
        value=None,
        values=values,
        datetime_start=_WHEN,
        datetime_complete=None if values is None else _WHEN,
        params=params,
        distributions={name: axes[name] for name in params},
        user_attrs={},
        system_attrs={_CONSTRAINTS: list(violations)} if violations else {},
        intermediate_values={},
    )


def _axis(distribution: Distribution) -> BaseDistribution:
    """Represent a choice by its index.

    Values may have any type, and 1, 1.0 and True are equal.
    """
    if isinstance(distribution, ChoiceOf):
        return CategoricalDistribution(range(len(distribution.values)))
    if isinstance(distribution, RandInt):
        return IntDistribution(
            distribution.low, distribution.high, log=distribution.log, step=distribution.step
        )
    if isinstance(distribution, LogUniform):
        return FloatDistribution(distribution.low, distribution.high, log=True)
    return FloatDistribution(distribution.low, distribution.high, step=distribution.step)


def _middle(axis: BaseDistribution) -> Any:
    """Return the coordinate in the middle of an axis; the first value of a choice."""
    if isinstance(axis, CategoricalDistribution):
        return axis.choices[0]
    assert isinstance(axis, IntDistribution | FloatDistribution)
    middle = math.sqrt(axis.low * axis.high) if axis.log else (axis.low + axis.high) / 2
    if axis.step is None:
        return middle
    # On a value of the axis.
    inside = axis.low + round((middle - axis.low) / axis.step) * axis.step
    return int(inside) if isinstance(axis, IntDistribution) else inside


def _coordinate(distribution: Distribution) -> Callable[[Any], Any]:
    """Return a function from a value to its coordinate on the axis."""
    if isinstance(distribution, ChoiceOf):
        return distribution.values.index
    if isinstance(distribution, RandInt):
        return int
    return lambda value: nearest(distribution, value)


def _value(distribution: Distribution, coordinate: Any) -> JsonValue:
    if isinstance(distribution, ChoiceOf):
        return distribution.values[int(coordinate)]
    return nearest(distribution, float(coordinate))
