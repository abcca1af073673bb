"""What several pages say of a fit run's models: which one is best, and which attempt one failed at, so that a failure
leads to what that attempt printed. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from cerebro.state import Run, wording
from dispatcher.reading.model_table import ModelTable


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best objective value of a fit run, and the model and epoch that has it."""

    model: str
    metric: str
    mode: str
    value: float
    epoch: int


def best(run: Run, table: ModelTable) -> Best | None:
    """Of a planned fit run; `None` while no model has the objective."""
    row = table.best()
    if row is None or row.best is None or row.best_epoch is None:
        return None
    return Best(
        model=row.id,
        metric=run.fit_request.metric,
        mode=run.fit_request.mode,
        value=row.best,
        epoch=row.best_epoch,
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
        # A message may come twice, as of a unit that was retried; the model was given up at the last.
        if model not in found or newest.ended > found[model][0]:
            known = FailedAttempt(task=key, attempt=newest.number, what=wording.task(task.key))
            found[model] = newest.ended, known
    return {model: attempt for model, (_, attempt) in found.items()}
