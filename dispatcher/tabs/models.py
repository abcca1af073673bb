"""What several pages say of a fit run's models: which one is best, and which attempt one failed at, so that a failure
leads to what that attempt printed. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from cerebro.state import Run, wording
from cerebro.state.best import BestModel, best_in, best_model
from dispatcher.reading.read_model import ReadModel


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best objective value of an experiment, and the run, model and epoch that have it."""

    run: str
    model: str
    metric: str
    mode: str
    value: float
    epoch: int


def found_best(read_model: ReadModel, fit: Run | None) -> BestModel | None:
    """Return the best model over all fits with the metric, split and data set of `fit`, if there is one."""
    return best_model(read_model.state, fit, best_of=read_model.best_of) if fit else None


def best(read_model: ReadModel, fit: Run | None) -> Best | None:
    """`found_best`, as pages show it."""
    return _shown(found_best(read_model, fit))


def best_of_fit(read_model: ReadModel, run: Run) -> Best | None:
    """The best model of one planned fit run; `None` while no model has the objective."""
    return _shown(best_in(run, best_of=read_model.best_of))


def _shown(found: BestModel | None) -> Best | None:
    if found is None:
        return None
    request = found.run.fit_request
    return Best(
        run=found.run.id,
        model=found.model.id,
        metric=request.metric,
        mode=request.mode,
        value=found.value,
        epoch=found.epoch,
    )


@dataclass(frozen=True, kw_only=True)
class FailedAttempt:
    """An attempt that started: `task` is its key, `what` the task in words."""

    task: str
    attempt: int
    what: str


def failed_attempts(run: Run, models: Collection[str]) -> dict[str, FailedAttempt]:
    """Those of the models in `models` that failed in `run`; without the ones whose attempt never started, which has
    no log."""
    wanted = {name: failure for name in models if (failure := run.models[name].failure) is not None}
    if not wanted:
        return {}
    found: dict[str, tuple[float, FailedAttempt]] = {}
    for key, task in run.tasks.items():
        model, newest = task.key.model or "", task.attempts[-1] if task.attempts else None
        if model not in wanted or newest is None or not newest.has_run or task.failure != wanted[model]:
            continue
        # A message may come twice, as of a sub-epoch that was retried; the model was given up at the last.
        if model not in found or newest.ended > found[model][0]:
            known = FailedAttempt(task=key, attempt=newest.number, what=wording.task(task.key))
            found[model] = newest.ended, known
    return {model: attempt for model, (_, attempt) in found.items()}
