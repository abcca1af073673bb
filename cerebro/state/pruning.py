"""Which checkpoints of a search nothing needs any more. Pure.

The commit of a sub-epoch removes what that sub-epoch has made superfluous. So a model that is trained no further would
keep two checkpoints or three for ever, and a search has a thousand such models. The controller removes what is not
worth keeping by the rule below, and says so in the log first (`CheckpointsPruned`): a user who resumes such a model
comes before that event, and keeps it, or after it, and is told that it cannot go on.

What is in use is never removed, whenever the event comes. What else is worth keeping depends on how good the others are
at that moment, so the event tells it, and no reader works it out again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cerebro.contract.events import CheckpointsPruned
from cerebro.contract.runs import EvaluatePlan
from cerebro.errors import IllegalEventError
from cerebro.state import beside
from cerebro.state.models import Model, ModelState
from cerebro.state.runs import Run
from cerebro.state.tasks import ENDED


def prunable(
    runs: Mapping[str, Run], run: Run, model: Model, best: Collection[str]
) -> tuple[set[str], set[str]]:
    """Names of checkpoints of a model that may be removed now, and of all that are there.

    Args:
        runs: of the experiment.
        best: ids of the models that keep theirs.
    """
    request = run.fit_request
    needed = model.needed_checkpoints(request.metric, request.mode, validated=run.is_validated)
    there = needed - model.removed
    if model.state is ModelState.ACTIVE or model.busy:
        return set(), there
    kept = _in_use(runs, run, model)
    goes_on = may_go_on(run, model)
    if goes_on or model.id in best:
        kept |= _to_go_on(run, model)
    if goes_on and model.id in run.young:
        kept.add(_origin(model))
    if model.id in best and (epoch := run.best_epoch(model)):
        kept.add(_end(model, epoch))
    return there - kept, there


def may_go_on(run: Run, model: Model) -> bool:
    """Whether a model that is not trained now may yet be: it waits at a rung, or a user has stopped it, or may retry
    it, while the search goes on."""
    if run.waits_at_rung(model):
        return True
    assert run.search is not None
    is_over = run.search.finish is not None and not run.counts.active
    return model.is_cut_short and model.id not in run.search.verdicts and not is_over


def prune(runs: Mapping[str, Run], run: Run, event: CheckpointsPruned) -> None:
    """Take in that checkpoints are removed, but for those that are in use by now: these stay.

    Raises:
        IllegalEventError: the run searches nothing, or has no such model.
    """
    unknown = event.files.keys() - run.models.keys()
    if run.search is None or unknown:
        raise IllegalEventError(
            f"checkpoints of {run.id} pruned, of {', '.join(sorted(unknown)) or 'no search'}"
        )
    for name, files in event.files.items():
        model = run.models[name]
        gone = set(files) - _in_use(runs, run, model)
        if not gone:
            continue
        model.removed |= gone
        run.pruned.append(name)
        if model.saved is not None and model.is_pruned:
            model.saved = None
        if name in run.young and _origin(model) in gone:
            run.release_origin(model)


def is_gone(model: Model, epoch: int) -> bool:
    """Whether the checkpoint at the end of an epoch was removed by `prune`; not of an epoch that is not complete any
    more, because its checkpoint was lost otherwise."""
    return 0 < epoch <= model.completed_epochs and _end(model, epoch) in model.removed


def lost_text(runs: Mapping[str, Run], run: Run) -> str:
    """That what a stopped test or prediction has yet to read was removed, as a part of a sentence; empty if it is
    there, or the run is open: what an open one reads stays."""
    if run.is_open or not isinstance(run.plan, EvaluatePlan):
        return ""
    fit, read = runs[run.plan.fit], run.plan.models
    left = {task.key.model for task in run.own_tasks() if task.state not in ENDED}
    gone = (name for name, epoch in read.items() if name in left and is_gone(fit.models[name], epoch))
    return next((gone_text(fit, fit.models[name], read[name]) for name in gone), "")


def gone_text(run: Run, model: Model, epoch: int = 0) -> str:
    """That the checkpoints of a model were removed, or only that of an epoch, and why, as a part of a sentence."""
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
    """Names of checkpoints that something reads which is open, or will be without anybody deciding it."""
    # Only of its own: a clone that goes no further gives its origin up, whoever else began there. The origin's owner
    # loses the file when the last of them has.
    used = {_origin(young) for young in run.young.values() if run.owner_of_origin(young) is model}
    if model.state is ModelState.ACTIVE or model.busy:
        request = run.fit_request
        used |= model.needed_checkpoints(request.metric, request.mode, validated=run.is_validated)
    tasks = (
        task.key for task in run.open.values() if task.key.kind == "valid" and task.key.model == model.id
    )
    epochs = {key.epoch or 0 for key in tasks} | beside.epochs_read(runs, run, model)
    used |= run.audits.needed(model.id)
    return used | {_end(model, epoch) for epoch in epochs if 0 < epoch <= model.completed_epochs}


def _to_go_on(run: Run, model: Model) -> set[str]:
    """Names of the checkpoints with which a model can be trained on: its newest one, and the ends of epochs that are to
    be validated then."""
    ends = range(1, model.completed_epochs + 1)
    waiting = {_end(model, epoch) for epoch in ends if run.is_validated and model.may_be_validated(epoch)}
    return waiting | {visit.file for visit in model.visits[-1:]}


def _origin(model: Model) -> str:
    """Name of the checkpoint that a model with another one's weights began with."""
    return model.visits[model.inherited - 1].file


def _end(model: Model, epoch: int) -> str:
    """Name of the checkpoint at the end of a complete epoch."""
    return model.visits[model.visits_until(epoch) - 1].file
