"""The best model and failed attempts of a fit run, for several pages. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from cerebro.state import Run
from cerebro.state.models.best import BestModel, best_in, best_model
from cerebro.state.reports import state_words
from dispatcher.read_models.read_model import ReadModel


@dataclass(frozen=True, kw_only=True)
class Best:
    """A best objective value, of one fit or over comparable fits, with its run, model and epoch."""

    run: str
    model: str
    metric: str
    mode: str
    value: float
    epoch: int


def found_best(read_model: ReadModel, fit: Run | None) -> BestModel | None:
    """Return the best model over all fits comparable with `fit`: same metric, split and data set."""
    return best_model(read_model.state, fit, best_of=read_model.best_of) if fit else None


def best(read_model: ReadModel, fit: Run | None) -> Best | None:
    """Return `found_best` for pages."""
    return shown_best(found_best(read_model, fit))


def best_of_fit(read_model: ReadModel, run: Run) -> Best | None:
    """Return the best model of one planned fit run; `None` before the first objective value."""
    return shown_best(best_in(run, best_of=read_model.best_of))


def shown_best(found: BestModel | None) -> Best | None:
    """Return a best model for pages."""
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
    """The failed attempt of a model. `task`: key; `what`: the task in words."""

    task: str
    attempt: int
    what: str


def failed_attempts(run: Run, models: Collection[str]) -> dict[str, FailedAttempt]:
    """Return the failed attempt of each of `models` in `run`.

    Excludes attempts that never started, because they have no log.
    """
    failures = {name: failure for name in models if (failure := run.models[name].failures.final) is not None}
    if not failures:
        return {}
    found: dict[str, tuple[float, FailedAttempt]] = {}
    for key, task in run.tasks.by_key.items():
        model, newest = task.key.model or "", task.attempts[-1] if task.attempts else None
        if model not in failures or newest is None or not newest.has_run or task.failure != failures[model]:
            continue
        # Attempts may repeat a message, such as retries. The model failed at the last one.
        if model not in found or newest.ended > found[model][0]:
            attempt = FailedAttempt(task=key, attempt=newest.number, what=state_words.task(task.key))
            found[model] = newest.ended, attempt
    return {model: attempt for model, (_, attempt) in found.items()}
