"""Models added while their run is open: by a user, by a search, or as repeats. Pure.

The log's order gives each model its id, so concurrent authors need no coordination.
"""

from __future__ import annotations

from cerebro.contract.events import ModelsRepeated, SearchDecided
from cerebro.contract.records import Hyperparameters
from cerebro.contract.runs import FitRequest, NewModel, ParentCheckpoint
from cerebro.errors import IllegalEventError
from cerebro.search.procedure import SEARCH
from cerebro.state.models.model import Model
from cerebro.state.models.progress import Lineage
from cerebro.state.runs import pruning
from cerebro.state.runs.repeats import repeats_of
from cerebro.state.runs.run import Run
from cerebro.state.runs.search_reports import report_models


def refusal(run: Run, new: NewModel) -> str:
    """Return why the model cannot be added now, or an empty text."""
    return size_refusal(run, new.hyperparams) or parent_refusal(run, new) or epochs_refusal(run, new)


def parent_refusal(run: Run, new: NewModel) -> str:
    """Return why the parent's checkpoint is no starting point, or an empty text."""
    checkpoint = new.checkpoint
    if checkpoint is None:
        return ""
    parent = run.models.get(checkpoint.model)
    if parent is None:
        return f"there is no model {checkpoint.model} in {run.id}"
    if not parent.sub_epochs:
        return f"model {parent.id} was never trained: wait for its first sub-epoch, or clone it cold (warm=False)"
    sub_epoch = sub_epochs_at(run, parent, checkpoint)
    if not sub_epoch:
        at = (
            "its best epoch is not known"
            if checkpoint.at == "best"
            else f"epoch {checkpoint.at} is not complete"
        )
        return f"{at}: model {parent.id} has trained {parent.completed_epochs} epochs; clone it at its last checkpoint"
    if parent.sub_epochs[sub_epoch - 1].checkpoint.name not in run.kept_checkpoints(parent):
        which = {"last": "last checkpoint", "best": "checkpoint of the best epoch"}
        what = which.get(str(checkpoint.at), f"checkpoint of epoch {checkpoint.at}")
        return f"the {what} of {parent.id} is gone: {_available_text(run, parent)}"
    return ""


def epochs_refusal(run: Run, new: NewModel) -> str:
    """Return why nothing would remain to train, or an empty text.

    Call it after `parent_refusal`."""
    if new.checkpoint is None:
        return ""
    parent = run.models[new.checkpoint.model]
    sub_epoch = sub_epochs_at(run, parent, new.checkpoint)
    begun = parent.partitions_until(sub_epoch)
    if begun >= new.epochs * len(parent.partitions):
        epochs = begun // len(parent.partitions)
        return (
            f"{parent.id} has trained {epochs} epochs there, so nothing is left of {new.epochs}: give epochs of "
            f"{epochs + 1} or more"
        )
    return ""


def size_refusal(run: Run, hyperparams: Hyperparameters) -> str:
    """Return why the batch size is invalid, or an empty text."""
    smallest = min(run.fit_rows.values())
    size = hyperparams.get("batch_size")
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= smallest:
        return (
            f"batch_size is {size!r}, expected a whole number from 1 to {smallest} (the smallest partition)"
        )
    return ""


def _available_text(run: Run, parent: Model) -> str:
    """The parent's checkpoints that are still available, as text."""
    available_checkpoints = run.kept_checkpoints(parent)
    if parent.is_pruned:
        return f"{pruning.removal_text(run, parent)}; clone it cold (warm=False)"
    ends = range(1, parent.completed_epochs + 1)
    epochs = [
        str(e)
        for e in ends
        if parent.sub_epochs[parent.sub_epochs_until(e) - 1].checkpoint.name in available_checkpoints
    ]
    return f"there is its last one{' and that of epoch ' * bool(epochs)}{', '.join(epochs)}"


def add(run: Run, new: NewModel, *, horizon: int = 0) -> Model:
    """Add the model; call it only without a `refusal`."""
    number = len(run.models)
    model = Model(
        id=f"m{number:0{_width(run)}}",
        hyperparams=new.hyperparams,
        epochs=new.epochs,
        partitions=tuple(sorted(run.fit_rows)),
        lineage=Lineage(parent=new.checkpoint.model if new.checkpoint else new.parent),
        priority=new.priority,
        horizon=horizon,
    )
    if new.checkpoint is not None:
        parent = run.models[new.checkpoint.model]
        sub_epoch = sub_epochs_at(run, parent, new.checkpoint)
        model.inherit(parent, sub_epoch)
        model.validation.metrics.update(
            {
                epoch: found
                for epoch, found in parent.validation.metrics.items()
                if epoch <= model.completed_epochs
            }
        )
        model.validation.skipped.update(
            set(range(1, model.completed_epochs + 1)) - model.validation.metrics.keys()
        )
        model.extend(model.epochs)
        run.checkpoints.young[model.id] = model
    run.models[model.id] = model
    run.scheduling.observe_added()
    run.settle(model)  # its resource may equal the inherited epochs
    run.observe_model(model)
    return model


def repeat(run: Run, event: ModelsRepeated) -> None:
    """Add the repeats of these models.

    Raises:
        IllegalEventError: the request has no repeats, or one of these models cannot be repeated.
    """
    request = run.fit_request
    repeated = {model.lineage.parent for model in run.models.values() if model.is_repeat}
    if len(set(event.models)) < len(event.models):
        raise IllegalEventError(f"{event.type} of {run.id} repeats a model twice")
    for name in event.models:
        model = run.models.get(name)
        if request.repeats is None or model is None or model.is_repeat or name in repeated:
            raise IllegalEventError(f"{event.type} of {run.id} repeats {name}, which is not due")
        if not model.completed_epochs:
            raise IllegalEventError(f"{event.type} of {run.id} repeats {name}, which has completed no epoch")
    assert request.repeats is not None
    for name in event.models:
        first = len(run.models)
        names = [f"m{number:0{_width(run)}}" for number in range(first, first + request.repeats.seeds)]
        for new in repeats_of(run.models[name], request, names):
            run.models[new.id] = new
            run.observe_model(new)
    run.scheduling.observe_added()


def decide(run: Run, event: SearchDecided) -> None:
    """Apply a decision of the search.

    Outdated actions are harmless: models that have ended, or that a user keeps, are not stopped, and a resource never
    shrinks.

    Raises:
        IllegalEventError: it is not the next decision.
    """
    assert run.search is not None
    run.search.check_decision(event)
    run.search.decide(event)
    changed = []
    for name in event.stop:
        model = run.models.get(name)
        if model is not None and name not in run.search.protected and model.move("ModelStopRequested"):
            changed.append(model)
    for extension in event.extend:
        model = run.models.get(extension.model)
        if model is not None and run.search.is_closed:
            run.search.observe_not_extended(model)
        elif model is not None and not model.is_cut_short:
            model.extend(max(extension.epochs, model.epochs))
            if model.id not in run.search.prioritized:
                model.priority = extension.priority
            changed.append(model)
    for model in changed:
        run.observe_model(model)
    report_models(run.search, run, changed, time=event.time, by=SEARCH)
    for new in event.add:
        why = "a user has ended the search" if run.search.is_closed else refusal(run, new)
        if why:
            run.search.observe_refused(why)
        else:
            run.search.observe_added(add(run, new, horizon=run.fit_request.epochs), by=SEARCH)


def sub_epochs_at(run: Run, parent: Model, checkpoint: ParentCheckpoint) -> int:
    """Return the number of the parent's sub-epochs before the clone; 0 without such a checkpoint."""
    if checkpoint.at == "last":
        return len(parent.sub_epochs)
    request = run.fit_request
    epoch = checkpoint.at
    if epoch == "best":
        epoch = parent.best_epoch(request.metric, request.mode, validated=run.is_validated) or 0
    return parent.sub_epochs_until(epoch) if 0 < epoch <= parent.completed_epochs else 0


def _width(run: Run) -> int:
    """Digits of a model number: as in the run's first id, or enough for all samples."""
    first = next(iter(run.models), "")
    request = run.request
    samples = request.search.samples if isinstance(request, FitRequest) and request.search else None
    return len(first) - 1 if first else max(2, len(str((samples or 1) - 1)))
