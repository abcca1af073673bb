"""The request that registers a model: its checkpoint, code, data set, hyperparameters and metrics. Pure.

`Experiment.register` and the page build it. The store numbers the version, and the controller copies the files.
"""

from __future__ import annotations

from cerebro.commands.selection import chosen_fit, find_model
from cerebro.contract.stored.registry import Registration
from cerebro.errors import NotFoundError
from cerebro.state import ExperimentState
from cerebro.state.runs.pruning import removal_text


def registration_of(
    state: ExperimentState, model: str, *, run: str | None = None, epoch: int | None = None, author: str = ""
) -> Registration:
    """Return the registration of a model.

    Args:
        run: default: the newest fit.
        epoch: completed epoch. Default: the best one, else the newest.

    Raises:
        NotFoundError: the run, model or epoch does not exist, or the checkpoint was removed.
    """
    fit = chosen_fit(state, run)
    found, request = find_model(fit, model), fit.fit_request
    if not found.sub_epochs:
        raise NotFoundError(f"model {model} of {fit.id} has no checkpoint: it has not trained a sub-epoch")
    chosen = epoch or fit.best_epoch(found) or found.completed_epochs
    checkpoint = found.epoch_checkpoint(chosen) if chosen else found.sub_epochs[-1].checkpoint.ref()
    if checkpoint is None:
        raise NotFoundError(
            f"model {model} of {fit.id} has completed {found.completed_epochs} epochs: name one of these"
        )
    if checkpoint.name in found.checkpoints.removed:
        raise NotFoundError(f"{removal_text(fit, found, chosen)}: choose a model whose checkpoints exist")
    dataset = state.datasets.get(fit.plan.dataset) if fit.plan else None
    metrics = {
        f"{split}/{metric}": value
        for split, values in (
            ("train", found.training_metrics(chosen) if chosen else {}),
            ("valid", found.validation.metrics.get(chosen, {})),
        )
        for metric, value in values.items()
    }
    last = len(found.sub_epochs) - 1
    return Registration(
        experiment=state.name,
        run=fit.id,
        model=found.id,
        epoch=chosen,
        checkpoint=checkpoint,
        code=request.code,
        fitted=dataset.fitted if dataset else None,
        dataset=dataset.id if dataset else "",
        hyperparams=found.hyperparams_at(chosen) if chosen else found.hyperparams_of(last),
        metric=request.metric,
        value=found.metric(request.metric, chosen, validated=fit.is_validated) if chosen else None,
        metrics=metrics,
        author=author,
    )
