"""A command of a user, and the events that it is: the same from the page, a notebook and the command line. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from cerebro.commands.chosen import about, find_model
from cerebro.commands.rules import (
    DOES,
    OF_MODEL,
    Action,
    allowed,
    experiment_now,
    is_free,
    run_now,
)
from cerebro.contract.events import (
    ClientEvent,
    DeletionRequested,
    ExperimentArchived,
    ModelResumed,
    ModelRetried,
    ModelStopRequested,
    RunResumed,
    RunStopRequested,
    SchedulerChanged,
)
from cerebro.errors import ConflictError, SearchSpaceError
from cerebro.scheduling.policies import POLICIES
from cerebro.state import ExperimentState, Model, Run, RunState, wording


@dataclass(frozen=True, kw_only=True)
class Command:
    """What somebody asks for.

    Attributes:
        run: what it is about; by default what `about` says.
        models: of that run, for actions of models; one or more.
        scheduler, planner: of `Action.SET_SCHEDULER`.
        confirm: of `Action.DELETE`, the experiment's name once more.
    """

    action: Action
    run: str | None = None
    models: tuple[str, ...] = ()
    scheduler: str = ""
    planner: bool = True
    confirm: str = ""


def events_of(command: Command, state: ExperimentState, *, by: str) -> tuple[ClientEvent, ...]:
    """The events that a command is: one, or one for each of its models.

    Args:
        by: who asks, for the log.

    Raises:
        NotFoundError: there is no such run, or it has no such model.
        SearchSpaceError: there is no such scheduler.
        ConflictError: the state does not allow it, for any one of the models; nothing is to be sent then.
    """
    run = about(command.action, state, command.run)
    return tuple(_event_of(command, state, run, model, by=by) for model in command.models or ("",))


def event_of_experiment(command: Command, name: str, *, by: str) -> ClientEvent:
    """The event that a command to a whole experiment is, whatever its log says: also if nobody can read it.

    Raises:
        ConflictError: a deletion is not confirmed.
    """
    if command.action is not Action.DELETE:
        return ExperimentArchived(is_archived=command.action is Action.ARCHIVE, by=by)
    if command.confirm != name:
        raise ConflictError(
            f"nothing was deleted: to delete {name!r} with all its data, repeat its exact name"
        )
    return DeletionRequested(by=by)


# --- mechanism -----------------------------------------------------------------------------------


def _event_of(
    command: Command, state: ExperimentState, run: Run | None, model: str, *, by: str
) -> ClientEvent:
    action = command.action
    if run is None:
        _check(action, allowed(state), experiment_now(state, action))
        return event_of_experiment(command, state.name, by=by)
    if action in OF_MODEL:
        return _model_event(action, state, run, find_model(run, model), by=by)
    if action is Action.SET_SCHEDULER and command.scheduler not in POLICIES:
        raise SearchSpaceError(
            f"no scheduler {command.scheduler!r}: choose one of {', '.join(sorted(POLICIES))}"
        )
    _check(action, allowed(state, run), run_now(state, run))
    if action is Action.STOP_RUN:
        return RunStopRequested(run=run.id, by=by)
    if action is Action.RESUME_RUN:
        return RunResumed(run=run.id, by=by)
    return SchedulerChanged(run=run.id, scheduler=command.scheduler, planner=command.planner, by=by)


def _model_event(action: Action, state: ExperimentState, run: Run, model: Model, *, by: str) -> ClientEvent:
    now = f"model {model.id} of {run.id} is {wording.model(model, run)}"
    if run.state is RunState.STOPPING or run.fatal is not None or not is_free(state, run):
        now = f"{now}, and {run_now(state, run)}"
    _check(action, allowed(state, run, model), now if state.deletion is None else experiment_now(state))
    if action is Action.STOP_MODEL:
        return ModelStopRequested(run=run.id, model=model.id, by=by)
    if action is Action.RESUME_MODEL:
        return ModelResumed(run=run.id, model=model.id, by=by)
    return ModelRetried(run=run.id, model=model.id, by=by)


def _check(action: Action, may: frozenset[Action], now: str) -> None:
    if action not in may:
        others = ", ".join(sorted(DOES[each] for each in may))
        hint = f"; possible now: {others}" if others else ""
        raise ConflictError(f"it is not possible to {DOES[action]}: {now}{hint}")
