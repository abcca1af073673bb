"""The end of a run: its outcome, its error for people, and the tasks to revoke before. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from cerebro.contract.events import RunFinished
from cerebro.contract.metrics import ADVICE
from cerebro.contract.rest import api
from cerebro.contract.tasks.failures import FailureKind
from cerebro.search.procedure import Refused
from cerebro.state import Model, ModelState, Run
from controller.decisions.preemption import release, revoke_task

_NAMED = 5
"""Maximum number of models named per cause of failure."""


def end(
    run: Run, outcome: str, error: str = "", *, now: float
) -> Iterator[api.Revoke | api.Preempt | api.Note]:
    """Revoke or release open tasks; finish the run when it has no more."""
    open_tasks = [*run.tasks.open.values()]
    for task in open_tasks:
        if outcome == "stopped":
            yield from release(task, "the run was stopped", now)
        else:
            yield revoke_task(task, "the run has failed", force=True)
    if not open_tasks:
        yield api.Note(event=RunFinished.model_validate({"run": run.id, "outcome": outcome, "error": error}))


def finished(run: Run) -> api.Note:
    """Finish a complete run.

    A fit counts as stopped if users stopped models and none was fully trained. Models that a search stopped
    count as trained.
    """
    verdicts = run.search.verdicts if run.search is not None else {}
    states = {
        ModelState.FINISHED if model.state is ModelState.STOPPED and model.id in verdicts else model.state
        for model in run.models.values()
    }
    if not states and (error := _none_made(run)):
        return api.Note(event=RunFinished(run=run.id, outcome="failed", error=error))
    if run.kind != "fit" or ModelState.FINISHED in states or not states:
        return api.Note(event=RunFinished(run=run.id, outcome="finished"))
    if ModelState.STOPPED in states:
        return api.Note(event=RunFinished(run=run.id, outcome="stopped"))
    return api.Note(event=RunFinished(run=run.id, outcome="failed", error=_all_failed(run)))


def _none_made(run: Run) -> str:
    """Return the reason why a search has no model, unless a user wanted that."""
    if run.search is None or run.search.is_closed:
        return ""
    refused = [report.why for report in run.search.reports if isinstance(report, Refused)]
    return f"no model of the search could be made: {refused[-1] if refused else run.search.finish}"


def _all_failed(run: Run) -> str:
    """Return each cause of failure once, the most common first and in full. The first line is the summary."""
    causes: dict[str, list[Model]] = {}
    for model in run.models.values():
        causes.setdefault(model.failures.final.line if model.failures.final else "", []).append(model)
    first, *other_causes = sorted(causes.items(), key=lambda cause: -len(cause[1]))
    share = f", {len(first[1])} of them" if other_causes else ""
    failure = first[1][0].failures.final
    subject = "the only model" if len(run.models) == 1 else f"all {len(run.models)} models"
    lines = [f"{subject} failed{share}: {failure.text if failure else 'no cause'}"]
    for cause, models in other_causes:
        more = f" and {len(models) - _NAMED} more" if len(models) > _NAMED else ""
        lines.append(f"{', '.join(model.id for model in models[:_NAMED])}{more}: {cause}")
    return "\n".join(lines)


def fatal_message(run: Run) -> str:
    """Return the reason why no task of the run can succeed, or ""."""
    failure = run.failures.fatal
    if failure is None:
        return ""
    if failure.kind is FailureKind.CHECKPOINT:
        # The remedy is more useful than the traceback.
        return f"{failure.message}. Choose another model with models=..., or train again with run_fit"
    return failure.text or str(failure.kind)


def mixed_parts(run: Run) -> str:
    """Return an error if metrics of a test's partitions have incompatible types, or ""."""
    found = run.counts.mixed
    if found is None:
        return ""
    return (
        f"metric {found.metric!r} of model {found.model} is a cerebro.Ratio on partition {found.ratio} and a number on "
        f"partition {found.number}, which cannot be put together: in SubEpochSpec.test(), {ADVICE}"
    )
