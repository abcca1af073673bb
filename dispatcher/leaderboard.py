"""The models of one fit run as the page shows them. Pure."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from cerebro.contract.runs import FitRequest
from cerebro.contract.tasks import Failure
from cerebro.state import Model, Run, wording
from dispatcher.listing import Best, best_of

PAGE = 100


@dataclass(frozen=True, kw_only=True)
class ModelRow:
    """One model of a fit run. `latest` is the objective at `latest_epoch`, `best` at `best_epoch`."""

    id: str
    state: str
    epoch: int
    epochs: int
    units_done: int
    units: int
    latest: float | None
    latest_epoch: int | None
    best: float | None
    best_epoch: int | None
    redone: int
    worker: str
    hyperparameters: tuple[str, ...]
    failure: Failure | None


@dataclass(frozen=True, kw_only=True)
class FitView:
    """The models of one fit run, one page of them; `columns` names the hyper-parameters that vary."""

    run: str
    metric: str
    mode: str
    is_validated: bool
    columns: tuple[str, ...]
    models: tuple[ModelRow, ...]
    page: int
    pages: int
    total: int
    counts: tuple[tuple[str, int], ...]
    best: Best | None
    best_hyperparameters: str


def fit_view(run: Run, page: int) -> FitView | None:
    """Page number `page` (from 1; past the end: the last) of a planned fit run's models."""
    if not isinstance(run.request, FitRequest):
        return None
    models = list(run.models.values())
    columns = _varying(models)
    pages = max(1, -(-len(models) // PAGE))
    page = min(max(1, page), pages)
    redone: Counter[str] = Counter()
    for task in run.tasks.values():
        if task.key.kind == "train" and task.key.model:
            # An attempt that was taken back before it started cost nobody anything.
            redone[task.key.model] += max(0, sum(attempt.started > 0 for attempt in task.attempts) - 1)
    best = best_of(run)
    return FitView(
        run=run.id,
        metric=run.request.metric,
        mode=run.request.mode,
        is_validated=run.is_validated,
        columns=columns,
        models=tuple(
            _model(model, run, run.request, columns, redone[model.id])
            for model in models[(page - 1) * PAGE : page * PAGE]
        ),
        page=page,
        pages=pages,
        total=len(models),
        counts=tuple(Counter(wording.model(model, run) for model in models).most_common()),
        best=best,
        best_hyperparameters=_python(run.models[best.model]) if best else "",
    )


def _model(model: Model, run: Run, request: FitRequest, columns: tuple[str, ...], redone: int) -> ModelRow:
    validated = run.is_validated
    latest = next(
        (
            epoch
            for epoch in range(model.completed_epochs, 0, -1)
            if model.metric(request.metric, epoch, validated=validated) is not None
        ),
        None,
    )
    best = model.best_epoch(request.metric, request.mode, validated=validated)
    task = run.tasks.get(model.busy) if model.busy else None
    return ModelRow(
        id=model.id,
        state=wording.model(model, run),
        epoch=model.epoch,
        epochs=model.epochs,
        units_done=len(model.visits),
        units=model.epochs * len(model.partitions),
        latest=model.metric(request.metric, latest, validated=validated) if latest else None,
        latest_epoch=latest,
        best=model.metric(request.metric, best, validated=validated) if best else None,
        best_epoch=best,
        redone=redone,
        worker=(task.worker or "") if task else "",
        hyperparameters=tuple(_text(model.hyperparams.get(name)) for name in columns),
        failure=model.failure,
    )


def _varying(models: list[Model]) -> tuple[str, ...]:
    """Hyper-parameters with more than one value; all of them when there is one model."""
    names = dict.fromkeys(name for model in models for name in model.hyperparams)
    return tuple(
        name
        for name in names
        if len(models) == 1 or len({_text(model.hyperparams.get(name)) for model in models}) > 1
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _python(model: Model) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in model.hyperparams.items())
