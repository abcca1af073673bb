"""Repeats: the best models of a fit, trained again with new seeds. Pure.

A repeat is a model of the run with its own seed; its parent is the repeated model. So attempts, commands and replays
need no further rules. Repeats take no part in the search, and no repeat is a best model.

The mean of a repeated model covers its repeats only. Its own value is not part of the mean: the model was chosen
because this value is high, so chance has probably improved it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from cerebro.contract.records import Hyperparameters
from cerebro.contract.runs import FitRequest
from cerebro.state.models.model import Model, ModelState
from cerebro.state.models.progress import Lineage


@dataclass(frozen=True, kw_only=True, slots=True)
class RepeatedModel:
    """A model with its repeats.

    Attributes:
        model: the repeated model.
        repeats: in the order of their seeds.
        values: repeat -> its best value of the fit's metric; repeats without a value are missing.
    """

    model: Model
    repeats: tuple[Model, ...]
    values: dict[str, float]

    @property
    def has_ended(self) -> bool:
        """True if no repeat trains further."""
        return not any(each.state is ModelState.ACTIVE for each in self.repeats)


def best_value(model: Model, request: FitRequest, *, validated: bool) -> float | None:
    """Return a model's best value of the fit's metric, if any."""
    epoch = model.best_epoch(request.metric, request.mode, validated=validated)
    return model.metric(request.metric, epoch, validated=validated) if epoch else None


def repeated_models(
    models: Mapping[str, Model], request: FitRequest, *, validated: bool
) -> list[RepeatedModel]:
    """Return the repeated models in the order of the run."""
    if request.repeats is None:
        return []
    found: dict[str, list[Model]] = {}
    for model in models.values():
        if model.is_repeat:
            found.setdefault(model.lineage.parent, []).append(model)
    return [
        RepeatedModel(
            model=model,
            repeats=tuple(found[name]),
            values={
                each.id: value
                for each in found[name]
                if (value := best_value(each, request, validated=validated)) is not None
            },
        )
        for name, model in models.items()
        if name in found
    ]


def final_means(models: Mapping[str, Model], request: FitRequest, *, validated: bool) -> dict[str, float]:
    """Return repeated model -> mean of its repeats' values.

    Empty until all repeats of the run have ended, and with several objectives or constraints: one mean has no order
    there.
    """
    repeated = repeated_models(models, request, validated=validated)
    if request.is_multi_objective or not all(each.has_ended for each in repeated):
        return {}
    return {each.model.id: fmean(each.values.values()) for each in repeated if each.values}


def due_models(
    models: Mapping[str, Model],
    request: FitRequest,
    *,
    best_of: Callable[[Iterable[Model], int], list[Model]],
    stopped_by_search: Collection[str],
) -> list[Model]:
    """Return the models to repeat, best first, once no model of the run trains further.

    Failed models and models that a user stopped are not repeated.

    Args:
        best_of: returns the best of some models by their own values, at most so many.
    """
    if request.repeats is None:
        return []
    ended = (
        model
        for model in models.values()
        if not model.is_repeat
        and (model.state is ModelState.FINISHED or model.id in stopped_by_search)
        and model.state is not ModelState.FAILED
    )
    repeated = {model.lineage.parent for model in models.values() if model.is_repeat}
    return [model for model in best_of(ended, request.repeats.top) if model.id not in repeated]


def repeats_of(model: Model, request: FitRequest, names: Iterable[str]) -> list[Model]:
    """Return new repeats of a model, one for each seed.

    They train for its completed epochs. If its hyperparameters changed while it or its ancestors trained, theirs
    change after the same partitions.
    """
    assert request.repeats is not None
    changes = _changes(model)
    return [
        Model(
            id=name,
            hyperparams=changes[0][1],
            epochs=model.completed_epochs,
            partitions=model.partitions,
            lineage=Lineage(
                parent=model.id, seed=request.seed + number, changes=changes if len(changes) > 1 else ()
            ),
            priority=model.priority,
            horizon=max(model.horizon, model.epochs),
        )
        for number, name in enumerate(names, start=1)
    ]


def _changes(model: Model) -> tuple[tuple[int, Hyperparameters], ...]:
    """Return (trained partitions, hyperparameters from there on) of a model's completed epochs.

    Within an epoch, each sub-epoch counts as one partition.
    """
    last = model.sub_epochs_until(model.completed_epochs)
    found = [(0, model.hyperparams_of(0))]
    for sub_epoch, _ in model.configs.begun:
        if sub_epoch >= last:
            break
        epochs = model.progress.epochs_before(sub_epoch)
        trained = epochs * len(model.partitions) + sub_epoch - model.sub_epochs_until(epochs)
        if model.hyperparams_of(sub_epoch) != found[-1][1]:
            found.append((trained, model.hyperparams_of(sub_epoch)))
    return tuple(found)
