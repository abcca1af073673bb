"""A model of a fit run in one row: what tables list, filters ask and figures draw; and the number that models are
compared by: the best objective, or that of an epoch which most have reached. Pure: state in, plain values out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cerebro.contract.records import Hyperparameters
from cerebro.contract.tasks import Failure
from cerebro.state import Model, Run, wording


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSummary:
    """One model. Times are seconds; of the store's clock where they are points in time, 0 while unknown.

    Attributes:
        id: such as ``m03``.
        index: position among the run's models, from 0: a model's colour follows it.
        state: a word of `cerebro.state.wording`.
        epoch, epochs: the present one, of so many that it is granted.
        sub_epochs_done, sub-epochs: committed sub-epochs, of so many; those that it has from its parent among them.
        latest, latest_epoch: the objective at the newest epoch that has it.
        best, best_epoch: the objective at the best epoch.
        metrics: all metrics at the best epoch, else at the newest; validation if the run validates, else training.
        hyperparams: as the search space gave them.
        worker: where its sub-epoch runs or is queued; empty if it has none.
        redone: attempts at its sub-epochs that began although an earlier one had begun.
        compute_s: time spent in user code.
        started, ended: of its first and its newest committed sub-epoch.
        failure: why it was given up.
        parent: the model that it was made from; empty without one.
        branch: the epoch of its parent after which it goes on from there; `None`: it began with weights of its own.
    """

    id: str
    index: int
    state: str
    epoch: int
    epochs: int
    sub_epochs_done: int
    sub_epochs: int
    latest: float | None
    latest_epoch: int | None
    best: float | None
    best_epoch: int | None
    metrics: dict[str, float]
    hyperparams: Hyperparameters
    worker: str
    redone: int
    compute_s: float
    started: float
    ended: float
    failure: Failure | None
    parent: str = ""
    branch: int | None = None

    @property
    def lineage(self) -> str:
        """Where it comes from, in words; empty if it was made from no other model."""
        if not self.parent:
            return ""
        return f"{self.parent} at epoch {self.branch}" if self.branch is not None else f"{self.parent}, anew"


def summaries(run: Run) -> Iterator[ModelSummary]:
    """All models of a fit run, in the order of its plan; none of a run that is no fit."""
    for index, model in enumerate(run.models.values()):
        yield summary(run, model, index)


def summary(run: Run, model: Model, index: int) -> ModelSummary:
    """One model of a fit run; `index` is its position in the plan, from 0."""
    request, validated = run.fit_request, run.is_validated
    latest = model.latest_epoch(request.metric, validated=validated)
    best = model.best_epoch(request.metric, request.mode, validated=validated)
    task = run.tasks.get(model.busy) if model.busy else None
    told = best or latest or model.completed_epochs
    return ModelSummary(
        id=model.id,
        index=index,
        state=wording.model(model, run),
        epoch=model.epoch,
        epochs=model.epochs,
        sub_epochs_done=model.visited,
        sub_epochs=model.epochs * len(model.partitions),
        latest=model.metric(request.metric, latest, validated=validated) if latest else None,
        latest_epoch=latest,
        best=model.metric(request.metric, best, validated=validated) if best else None,
        best_epoch=best,
        metrics=model.validations.get(told, {}) if validated else model.training_metrics(told),
        hyperparams=model.hyperparams_shown(best),
        worker=(task.worker or "") if task else "",
        redone=model.redone,
        compute_s=model.compute_s,
        started=model.began,
        ended=model.visits[-1].ended if model.own_sub_epochs else 0.0,
        failure=model.failure,
        parent=model.parent,
        branch=model.inherited_epochs if model.inherited else None,
    )


def scores(rows: Sequence[ModelSummary], values: Mapping[str, float] | None = None) -> dict[str, float]:
    """Model id -> its best objective, or what `values` has for it; models without one are left out."""
    found = {row.id: row.best if values is None else values.get(row.id) for row in rows}
    return {model: value for model, value in found.items() if value is not None}


def values_at(run: Run, epoch: int, *, margin: int = 0) -> dict[str, float]:
    """Model id -> the objective at `epoch`, so that models of unequal progress compare fairly.

    Args:
        run: a fit run.
        epoch: from 1.
        margin: where `epoch` has no value, that of the nearest epoch at most so many before it is taken.
    """
    found = {}
    for model in run.models.values():
        for candidate in range(epoch, max(0, epoch - margin - 1), -1):
            value = model.metric(run.fit_request.metric, candidate, validated=run.is_validated)
            if value is not None:
                found[model.id] = value
                break
    return found


def ranked(rows: Iterable[ModelSummary], mode: str) -> list[ModelSummary]:
    """Best first; those without a value last, of these and of equals the one that is further, then by the plan."""
    sign = 1 if mode == "min" else -1
    return sorted(
        rows, key=lambda row: (row.best is None, sign * (row.best or 0.0), -row.sub_epochs_done, row.index)
    )
