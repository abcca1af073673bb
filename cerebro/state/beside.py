"""Which runs of one experiment go on beside each other. The one owner of this rule. Pure.

An experiment preprocesses or trains in one run at a time. Tests and predictions go on beside it and beside each other,
as long as nothing changes what they read: the fit run of their models has ended, or the models are finished, which they
stay, but for those that a search may yet train on. So while a test or prediction reads a model that is not finished,
its fit run stays as it is; and while that run is open, the test or prediction waits.

If only one of two runs can go on, it is the one that was requested first; the other waits until that has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cerebro.contract.runs import EvaluatePlan, EvaluateRequest
from cerebro.state.models import Model, ModelState
from cerebro.state.runs import Run

_NAMED = 5
"""Models that a reason names."""


class Obstacle(NamedTuple):
    """An open run that another one cannot go on beside."""

    run: Run
    reason: str
    """A sentence without its full stop."""


def obstacle(runs: Mapping[str, Run], run: Run) -> Obstacle | None:
    """What `run` has to wait for: of an open one, an open run before it; of one that has ended or is not requested yet,
    any open run.

    Args:
        runs: of the experiment by id, oldest first.
    """
    for other in runs.values():
        if other is run:
            if run.is_open:
                return None
        elif other.is_open and (reason := _reason(run, other)):
            return Obstacle(other, reason)
    return None


def going_on(runs: Mapping[str, Run]) -> list[Run]:
    """Open runs that have to wait for no other one of their experiment, oldest first."""
    return [run for run in runs.values() if run.is_open and obstacle(runs, run) is None]


def finished_models(run: Run) -> list[str]:
    """Ids of a fit run's models that may be tested while it is open."""
    return [model.id for model in run.models.values() if _is_final(run, model)]


def reader(runs: Mapping[str, Run], fit: Run, model: str) -> Run | None:
    """An open test or prediction that reads a model of a fit run: the model must stay as it is until that has ended."""
    for run in runs.values():
        plan = run.plan
        if run.is_open and isinstance(plan, EvaluatePlan) and plan.fit == fit.id and model in plan.models:
            return run
    return None


def epochs_read(runs: Mapping[str, Run], fit: Run, model: Model) -> set[int]:
    """Epochs of a model whose checkpoints open tests and predictions read, or are to read."""
    found: set[int | None] = set()
    for run in runs.values():
        if not run.is_open or not isinstance(run.request, EvaluateRequest) or run.request.fit != fit.id:
            continue
        if isinstance(run.plan, EvaluatePlan):
            found.add(run.plan.models.get(model.id))
        elif model.id in run.request.models:
            found.add(fit.best_epoch(model))
    return {epoch for epoch in found if epoch is not None}


# --- mechanism -----------------------------------------------------------------------------------


def _is_final(run: Run, model: Model) -> bool:
    """Whether an open fit run leaves the model as it is: one that waits at a rung may go on."""
    if model.state is not ModelState.FINISHED:
        return False
    is_given_up = run.search is not None and model.id in run.search.verdicts
    return run.has_known_end or is_given_up or model.epochs >= run.fit_request.epochs


def _reason(run: Run, other: Run) -> str:
    """Why `run` cannot go on while `other` is open; empty if it can."""
    if not run.is_evaluation and not other.is_evaluation:
        return f"{other.id} is {other.state}, and an experiment preprocesses or trains in one run at a time"
    if changing := _changing(run, other):
        return f"{other.id} is {other.state}, and its {changing}"
    if changing := _changing(other, run):
        return f"{other.id} is {other.state} and reads {run.id}, whose {changing}"
    return ""


def _changing(reader: Run, fit: Run) -> str:
    """What `reader` reads of `fit` that `fit` may yet change, and why; empty if there is nothing."""
    if not isinstance(reader.request, EvaluateRequest) or reader.request.fit != fit.id:
        return ""
    if not fit.models and fit.search is None:
        return "models are not trained yet"
    named = reader.plan.models if isinstance(reader.plan, EvaluatePlan) else reader.request.models
    # What it does not have cannot change: who plans the run says that it is not there.
    asked = [fit.models[name] for name in named if name in fit.models] if named else fit.models.values()
    unfinished = [model.id for model in asked if not _is_final(fit, model)]
    if not unfinished and (named or fit.has_known_end):
        return ""
    if not named:
        return "best model is not known before it has ended"
    told = ", ".join(unfinished[:_NAMED]) + (", ..." if len(unfinished) > _NAMED else "")
    return f"model {told} is not finished" if len(unfinished) == 1 else f"models {told} are not finished"
