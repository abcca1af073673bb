"""Checkpoints of a search that are no longer needed. Pure.

A commit removes only checkpoints that its sub-epoch made obsolete, so each ended model of a search would keep two or
three. The controller removes them by the rule below and first appends `CheckpointsPruned`. A user who resumes a model
before that event keeps it; after it, the command is refused.

Checkpoints in use are never removed. Which others to keep depends on the models' ranking at that moment, so the event
lists the files and readers don't recompute it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cerebro.contract.events import CheckpointsPruned
from cerebro.contract.runs import EvaluatePlan
from cerebro.errors import IllegalEventError
from cerebro.state.models.model import Model, ModelState
from cerebro.state.runs import concurrent_runs
from cerebro.state.runs.parts.retention import parent_checkpoint_owner
from cerebro.state.runs.run import Run
from cerebro.state.tasks.task import ENDED


def prunable(
    runs: Mapping[str, Run], run: Run, model: Model, best: Collection[str]
) -> tuple[set[str], set[str]]:
    """Return a model's checkpoints that may be removed now, and all its checkpoints.

    Args:
        runs: runs of the experiment.
        best: ids of models that keep their checkpoints.
    """
    request = run.fit_request
    needed = model.needed_checkpoints(request.metric, request.mode, validated=run.is_validated)
    there = needed - model.checkpoints.removed
    if model.state is ModelState.ACTIVE or model.busy:
        return set(), there
    retained_checkpoints = _in_use(runs, run, model)
    goes_on = may_go_on(run, model)
    if goes_on or model.id in best:
        retained_checkpoints |= _to_go_on(run, model)
    if goes_on and model.id in run.checkpoints.young:
        retained_checkpoints.add(_origin(model))
    if model.id in best and (epoch := run.best_epoch(model)):
        retained_checkpoints.add(_end(model, epoch))
    return there - retained_checkpoints, there


def may_go_on(run: Run, model: Model) -> bool:
    """Return True if a paused model may train again: at a rung, or by a user's command during the search."""
    if run.waits_at_rung(model):
        return True
    assert run.search is not None
    is_over = run.search.finish is not None and not run.counts.active
    return model.is_cut_short and model.id not in run.search.verdicts and not is_over


def prune(runs: Mapping[str, Run], run: Run, event: CheckpointsPruned) -> None:
    """Record removed checkpoints, except the ones in use.

    Raises:
        IllegalEventError: the run has no search, or not this model.
    """
    unknown = event.files.keys() - run.models.keys()
    if run.search is None or unknown:
        raise IllegalEventError(
            f"checkpoints of {run.id} pruned, of {', '.join(sorted(unknown)) or 'no search'}"
        )
    for name, files in event.files.items():
        model = run.models[name]
        removed = set(files) - _in_use(runs, run, model)
        if not removed:
            continue
        model.checkpoints.removed |= removed
        run.checkpoints.pruned.append(name)
        if model.checkpoints.saved is not None and model.is_pruned:
            model.checkpoints.saved = None
        if name in run.checkpoints.young and _origin(model) in removed:
            run.release_parent_checkpoint(model)


def is_removed(model: Model, epoch: int) -> bool:
    """Return True if `prune` removed the checkpoint at the end of a complete epoch."""
    return 0 < epoch <= model.completed_epochs and _end(model, epoch) in model.checkpoints.removed


def lost_text(runs: Mapping[str, Run], run: Run) -> str:
    """Describe the removed checkpoint that a stopped test or prediction needs; empty without one."""
    if run.is_open or not isinstance(run.plan, EvaluatePlan):
        return ""
    fit, read = runs[run.plan.fit], run.plan.models
    remaining_models = {task.key.model for task in run.tasks.requested() if task.state not in ENDED}
    removed = (
        name
        for name, epoch in read.items()
        if name in remaining_models and is_removed(fit.models[name], epoch)
    )
    return next((removal_text(fit, fit.models[name], read[name]) for name in removed), "")


def removal_text(run: Run, model: Model, epoch: int = 0) -> str:
    """Describe why the checkpoints of a model, or of one epoch, were removed."""
    keep = run.keep
    best = "its best model" if keep == 1 else f"its {keep} best models"
    is_all = model.is_pruned or not epoch
    what = (
        f"the checkpoints of {model.id} were"
        if is_all
        else f"the checkpoint of epoch {epoch} of {model.id} was"
    )
    return f"{what} removed, because {run.id} keeps those of {best} (keep={keep})"


# --- mechanism -----------------------------------------------------------------------------------


def _in_use(runs: Mapping[str, Run], run: Run, model: Model) -> set[str]:
    """Checkpoints in use by open tasks and runs, or by pending work."""
    # Only its own: an ended clone releases its parent's checkpoint. The owner's file goes with the last clone.
    used = {
        _origin(young)
        for young in run.checkpoints.young.values()
        if parent_checkpoint_owner(young, run.models) is model
    }
    if model.state is ModelState.ACTIVE or model.busy:
        request = run.fit_request
        used |= model.needed_checkpoints(request.metric, request.mode, validated=run.is_validated)
    tasks = (
        task.key
        for task in run.tasks.open.values()
        if task.key.kind == "valid" and task.key.model == model.id
    )
    epochs = {key.epoch or 0 for key in tasks} | concurrent_runs.epochs_read(runs, run, model)
    used |= run.verifications.needed(model.id)
    return used | {_end(model, epoch) for epoch in epochs if 0 < epoch <= model.completed_epochs}


def _to_go_on(run: Run, model: Model) -> set[str]:
    """Checkpoints for further training: the newest, and ends of epochs that await validation."""
    ends = range(1, model.completed_epochs + 1)
    waiting = {_end(model, epoch) for epoch in ends if run.is_validated and model.validation.may_come(epoch)}
    return waiting | {sub_epoch.checkpoint.name for sub_epoch in model.sub_epochs[-1:]}


def _origin(model: Model) -> str:
    """The inherited checkpoint that a clone started from."""
    return model.sub_epochs[model.lineage.sub_epochs - 1].checkpoint.name


def _end(model: Model, epoch: int) -> str:
    """The checkpoint at the end of a complete epoch."""
    return model.sub_epochs[model.sub_epochs_until(epoch) - 1].checkpoint.name
