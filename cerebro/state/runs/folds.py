"""Folds: cross-validation of configurations without copies of the data. Pure.

The partitions of a run are divided into folds. A configuration has one model for each fold. A model never trains on its
own fold's partitions (`Model.partitions` lacks them). It validates on them by one task for each, on a worker with this
partition.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from cerebro.contract.records import Hyperparameters
from cerebro.contract.runs import FitPlan, FitRequest
from cerebro.state.models.model import Model, ModelState
from cerebro.state.models.progress import Fold


def divided(rows: Mapping[int, int], folds: int) -> tuple[tuple[int, ...], ...]:
    """Divide partitions into folds of nearly equal numbers of rows, each with at least one partition.

    The largest partition goes first, each to the fold with the fewest rows.

    Args:
        rows: partition -> rows; at least `folds` partitions.
    """
    found: list[list[int]] = [[] for _ in range(folds)]
    sums = [0] * folds
    for partition in sorted(rows, key=lambda each: (-rows[each], each)):
        fold = min(range(folds), key=lambda each: (sums[each], len(found[each]), each))
        found[fold].append(partition)
        sums[fold] += rows[partition]
    return tuple(sorted(tuple(sorted(partitions)) for partitions in found))


def models_of(configurations: Mapping[str, Hyperparameters], folds: int) -> dict[str, Hyperparameters]:
    """Return the models of a cross-validation: for each configuration one per fold, such as ``m03-f1``."""
    return {
        f"{name}-f{number}": hyperparams
        for name, hyperparams in configurations.items()
        for number in range(1, folds + 1)
    }


def fold_of(plan: FitPlan, name: str, number: int) -> Fold | None:
    """Return the fold of the plan's model `name`, which is its model `number`, from 0."""
    if not plan.folds:
        return None
    fold = number % len(plan.folds)
    return Fold(configuration=name.rpartition("-")[0], number=fold + 1, partitions=plan.folds[fold])


def trained_partitions(plan: FitPlan, fold: Fold | None) -> tuple[int, ...]:
    """Return the partitions of a model's epochs, ascending."""
    held_out = () if fold is None else fold.partitions
    return tuple(partition for partition in sorted(plan.partitions) if partition not in held_out)


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """A configuration with its models.

    Attributes:
        name: such as ``m03``.
        models: in the order of the folds.
        epoch: epoch with the best mean over the folds, of the epochs that all models have validated; `None` without
            any.
        values: value of each fold at that epoch, in the same order; empty without one.
    """

    name: str
    models: tuple[Model, ...]
    epoch: int | None
    values: tuple[float, ...]

    @property
    def has_ended(self) -> bool:
        """True if no model trains further."""
        return not any(each.state is ModelState.ACTIVE for each in self.models)

    @property
    def mean(self) -> float | None:
        """Mean over the folds; `None` without values."""
        return fmean(self.values) if self.values else None


def configurations(models: Iterable[Model], request: FitRequest) -> list[Configuration]:
    """Return the configurations of a cross-validation in the order of the run; none for another run."""
    found: dict[str, list[Model]] = {}
    if request.folds is not None:
        for model in models:
            if model.lineage.fold is not None:
                found.setdefault(model.lineage.fold.configuration, []).append(model)
    return [_configuration(name, each, request) for name, each in found.items()]


def _configuration(name: str, models: Collection[Model], request: FitRequest) -> Configuration:
    sign = 1 if request.mode == "max" else -1
    by_model = [model.scores(request.metric, validated=True) for model in models]
    epochs = set.intersection(*(set(scores) for scores in by_model))
    means = {epoch: sign * fmean(scores[epoch] for scores in by_model) for epoch in epochs}
    best = max(means, key=lambda epoch: (means[epoch], -epoch), default=None)
    values = () if best is None else tuple(scores[best] for scores in by_model)
    return Configuration(name=name, models=tuple(models), epoch=best, values=values)


def means(models: Iterable[Model], request: FitRequest) -> dict[str, float]:
    """Return the first model of each configuration -> the configuration's mean, if all folds have a value."""
    return {each.models[0].id: each.mean for each in configurations(models, request) if each.mean is not None}
