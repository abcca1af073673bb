"""Reports to a run's search that follow from changes of the run."""

from __future__ import annotations

import math
from collections.abc import Iterable

from cerebro.contract.events import (
    ModelChanged,
    ModelExtended,
    ModelResumed,
    ModelRetried,
    ModelsAdded,
    PriorityChanged,
    RunCommand,
    SearchStopRequested,
)
from cerebro.contract.search import OwnProcedure
from cerebro.search.procedure import Changed, Extended, Failed, Measured, Reached, Resumed, Stopped
from cerebro.state.models.model import Model, ModelState
from cerebro.state.runs.compared_values import reported_values
from cerebro.state.runs.run import Run
from cerebro.state.runs.search_log import ReportedModel, SearchLog, user_name


def own_procedure(run: Run) -> OwnProcedure | None:
    """Return the user-defined procedure of a run's search; `None` for any other run."""
    request = run.fit_request.search if run.search is not None else None
    if run.search is None or request is None or not isinstance(request.procedure, OwnProcedure):
        return None
    return run.search.replaced_by or request.procedure


def report_models(log: SearchLog, run: Run, models: Iterable[Model], *, time: float, by: str) -> None:
    """Report the changes of these models.

    Args:
        time: time of the event, in seconds by the store's clock.
        by: name of the user, or `SEARCH`, that stopped or resumed them.
    """
    for model in models:
        reported = log.reported[model.id]
        since_s = time - run.clock.begun
        _report_metrics(log, run, model, reported, since_s)
        previous_state, reported.state = reported.state, model.state
        if previous_state is not model.state:
            _report_state(log, run, model, previous_state, since_s=since_s, by=by)


def report_command(log: SearchLog, run: Run, event: RunCommand) -> None:
    """Report the effect of a user's command, on other models too: a resumed run stops them."""
    known = (model for model in run.models.values() if model.id in log.reported)
    report_models(log, run, known, time=event.time, by=user_name(event.by))
    match event:
        case _ if (name := getattr(event, "model", "")) and name not in log.reported:
            return  # a repeat
        case ModelsAdded():
            for model in list(run.models.values())[-len(event.models) :]:
                log.observe_added(model, by=user_name(event.by))
        case ModelExtended():
            model = run.models[event.model]
            log.protected.add(model.id)
            log.verdicts.pop(model.id, None)
            log.reports.append(Extended(model=model.id, epochs=model.epochs, by=user_name(event.by)))
        case ModelResumed() | ModelRetried():
            log.protected.add(event.model)
            log.verdicts.pop(event.model, None)
        case ModelChanged():
            log.reports.append(Changed(model=event.model, hyperparams=run.models[event.model].hyperparams))
        case PriorityChanged(model=str(model)) if model:
            log.prioritized.add(model)
        case SearchStopRequested():
            log.close(event.by)


def _report_metrics(log: SearchLog, run: Run, model: Model, reported: ReportedModel, since_s: float) -> None:
    if len(reported.measured) >= model.completed_epochs:
        return
    for epoch in range(1, model.completed_epochs + 1):
        value = model.metric(run.fit_request.metric, epoch, validated=run.is_validated)
        if epoch not in reported.measured and value is not None:
            reported.measured.add(epoch)
            metrics = reported_values(run, model, epoch)
            log.reports.append(
                Measured(model=model.id, epoch=epoch, value=value, metrics=metrics, time=since_s)
            )


def _report_state(
    log: SearchLog, run: Run, model: Model, previous_state: ModelState, *, since_s: float, by: str
) -> None:
    match model.state:
        case ModelState.FINISHED if previous_state is ModelState.ACTIVE:
            value = model.metric(run.fit_request.metric, model.epochs, validated=run.is_validated)
            log.reports.append(
                Reached(
                    model=model.id,
                    epochs=model.epochs,
                    value=math.nan if value is None else value,
                    metrics=reported_values(run, model, model.epochs),
                    time=since_s,
                )
            )
        case ModelState.FAILED:
            log.reports.append(Failed(model=model.id, time=since_s))
        case ModelState.STOPPED:
            log.reports.append(Stopped(model=model.id, by=by))
        case ModelState.ACTIVE | ModelState.FINISHED if previous_state is not ModelState.FINISHED:
            log.reports.append(Resumed(model=model.id, by=by, epochs=model.epochs))
