"""Rule for concurrent runs of one experiment. No other module decides this. Pure.

At most one run preprocesses or trains. Tests and predictions run concurrently with it and each other while nothing
changes their models: the fit run has ended, or the models are finished and no search can extend them. A test or
prediction of an unfinished model waits while its fit run is open, and the fit run stays closed while it is read.

Of two conflicting runs the older one continues, and the other waits for its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cerebro.contract.runs import EvaluatePlan, EvaluateRequest
from cerebro.state.models.model import Model, ModelState
from cerebro.state.runs.run import Run

_NAMED = 5
"""Maximum number of models in a reason."""


class Obstacle(NamedTuple):
    """An open run that blocks another one."""

    run: Run
    reason: str
    """A sentence without its full stop."""


def obstacle(runs: Mapping[str, Run], run: Run) -> Obstacle | None:
    """Return the run that blocks `run`: an earlier open run, or any open run if `run` is not open.

    Args:
        runs: runs of the experiment by id, oldest first.
    """
    for other in runs.values():
        if other is run:
            if run.is_open:
                return None
        elif other.is_open and (reason := _reason(run, other)):
            return Obstacle(other, reason)
    return None


def going_on(runs: Mapping[str, Run]) -> list[Run]:
    """Return the open runs that no other run of the experiment blocks, oldest first."""
    return [run for run in runs.values() if run.is_open and obstacle(runs, run) is None]


def finished_models(run: Run) -> list[str]:
    """Return the models of an open fit run that may be tested."""
    return [model.id for model in run.models.values() if _is_final(run, model)]


def reader(runs: Mapping[str, Run], fit: Run, model: str) -> Run | None:
    """Return an open test or prediction that needs the model unchanged."""
    for run in runs.values():
        plan = run.plan
        if run.is_open and isinstance(plan, EvaluatePlan) and plan.fit == fit.id and model in plan.models:
            return run
    return None


def epochs_read(runs: Mapping[str, Run], fit: Run, model: Model) -> set[int]:
    """Return a model's epochs with checkpoints that open tests and predictions need."""
    found: set[int | None] = set()
    for run in runs.values():
        if not run.is_open or not isinstance(run.request, EvaluateRequest) or run.request.fit != fit.id:
            continue
        if isinstance(run.plan, EvaluatePlan):
            found.add(run.plan.models.get(model.id))
        elif model.id in run.request.models:
            found.add(fit.best_epoch(model))
    return {epoch for epoch in found if epoch is not None}


# --- helpers -------------------------------------------------------------------------------------


def _is_final(run: Run, model: Model) -> bool:
    """True if an open fit run will not change the model; a search may extend one at a rung."""
    if model.state is not ModelState.FINISHED:
        return False
    is_given_up = run.search is not None and model.id in run.search.verdicts
    return run.has_known_end or is_given_up or model.epochs >= run.fit_request.epochs


def _reason(run: Run, other: Run) -> str:
    """Why `other` blocks `run`, or an empty string."""
    if not run.is_evaluation and not other.is_evaluation:
        return f"{other.id} is {other.state}, and an experiment preprocesses or trains in one run at a time"
    if changing := _changing(run, other):
        return f"{other.id} is {other.state}, and its {changing}"
    if changing := _changing(other, run):
        return f"{other.id} is {other.state} and reads {run.id}, whose {changing}"
    return ""


def _changing(reader: Run, fit: Run) -> str:
    """What `reader` needs from `fit` that may still change, or an empty string."""
    if not isinstance(reader.request, EvaluateRequest) or reader.request.fit != fit.id:
        return ""
    if not fit.models and fit.search is None:
        return "models are not trained yet"
    named = reader.plan.models if isinstance(reader.plan, EvaluatePlan) else reader.request.models
    # Missing models cannot change; planning the run reports them.
    needed_models = (
        [fit.models[name] for name in named if name in fit.models] if named else fit.models.values()
    )
    unfinished = [model.id for model in needed_models if not _is_final(fit, model)]
    if not unfinished and (named or fit.has_known_end):
        return ""
    if not named:
        return "best model is not known before it has ended"
    names = ", ".join(unfinished[:_NAMED]) + (", ..." if len(unfinished) > _NAMED else "")
    return f"model {names} is not finished" if len(unfinished) == 1 else f"models {names} are not finished"
