"""The events of a user's command, and their outcome. Pure.

Command line, notebook and dispatcher call `events_of`, append the events to the log themselves, and may then read the
effect with `outcomes`. `cerebro.commands.rules` decides which commands are allowed. Nothing takes effect here: the fold
and the controller act on the events, and a command that came too late has no effect.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from cerebro.commands import training_config
from cerebro.commands.command import Command
from cerebro.commands.rules import (
    CONFIG_COMMANDS,
    DOES,
    OF_MODEL,
    OF_OPEN,
    CommandKind,
    allowed,
    experiment_now,
    model_now,
    run_now,
)
from cerebro.commands.selection import find_model, target_run
from cerebro.contract.events import (
    ClientEvent,
    DeletionRequested,
    ExperimentArchived,
    ModelResumed,
    ModelRetried,
    ModelStopRequested,
    PriorityChanged,
    RunResumed,
    RunStopRequested,
    SchedulerChanged,
)
from cerebro.contract.priority import NORMAL, parse
from cerebro.errors import CerebroError, ConflictError, PartlyDoneError, SearchSpaceError
from cerebro.scheduling.policies import POLICIES
from cerebro.state import CommandRecord, ExperimentState, Model, Run
from cerebro.state.reports import state_words
from cerebro.state.runs.search_reports import own_procedure


def events_of(command: Command, state: ExperimentState, *, by: str) -> tuple[ClientEvent, ...]:
    """Return the events of a command: one, or one for each model.

    Models that already have the value get no event, unless all have it.

    Args:
        by: author, for the log.

    Raises:
        NotFoundError: the run or a model does not exist.
        SearchSpaceError: the scheduler or a hyperparameter is invalid.
        BadRequestError: the priority or the number of epochs is invalid.
        ConflictError: the state does not allow the command for one of the models. Send no event then.
    """
    run = target_run(command.kind, state, command.run, is_of_models=bool(command.models))
    is_of_open = command.kind in OF_OPEN and not command.models
    if state.deletion is None and is_of_open and command.run is None and run and not run.is_open:
        now = f"no run of experiment {state.name!r} is open ({run.id} is {state_words.run(run)})"
        raise ConflictError(f"it is not possible to {DOES[command.kind]}: {now}")
    return tuple(_event_of(command, state, run, model, by=by) for model in _changing(command, run))


def problems_of(command: Command, state: ExperimentState) -> list[training_config.Problem]:
    """Return all problems of a command of `rules.CONFIG_COMMANDS`.

    Raises:
        NotFoundError: the run or a model does not exist.
    """
    run = target_run(command.kind, state, command.run, is_of_models=bool(command.models))
    assert run is not None
    models = (find_model(run, model) if model else None for model in _changing(command, run))
    return [problem for model in models for problem in training_config.problems(command, state, run, model)]


def outcomes(
    command: Command, state: ExperimentState, seqs: Collection[int], *, by: str
) -> tuple[CommandRecord, ...]:
    """Return the records that the log's fold made for a command's events.

    Args:
        state: state after the command's events.
        seqs: numbers of these events.

    Raises:
        PartlyDoneError: another command came first, so some models did not change.
        ConflictError: another command came first, so nothing changed. Both messages give the current reason.
    """
    found = tuple(record for record in state.commands if record.seq in seqs)
    late = tuple(record.model for record in found if record.is_late)
    if not late:
        return found
    done = ", ".join(record.model for record in found if not record.is_late)
    why = f"it came too late to {DOES[command.kind]}: another command changed the run first"
    try:
        events_of(replace(command, models=tuple(filter(None, late)) or command.models), state, by=by)
    except CerebroError as error:
        if not done:
            raise
        why = str(error)
    raise (
        PartlyDoneError(f"{done} changed, {', '.join(late)} did not: {why}") if done else ConflictError(why)
    )


def event_of_experiment(command: Command, name: str, *, by: str) -> ClientEvent:
    """Return the event of a command to an experiment; the log need not be readable.

    Raises:
        ConflictError: a deletion is not confirmed.
    """
    if command.kind is not CommandKind.DELETE:
        return ExperimentArchived(is_archived=command.kind is CommandKind.ARCHIVE, by=by)
    if command.confirm != name:
        raise ConflictError(
            f"nothing was deleted: to delete {name!r} with all its data, repeat its exact name"
        )
    return DeletionRequested(by=by)


# --- mechanism -----------------------------------------------------------------------------------


def _changing(command: Command, run: Run | None) -> tuple[str, ...]:
    """Select the models without the new value; all models if each has it."""
    if run is None or len(command.models) < 2:
        return command.models or ("",)
    changing = tuple(
        name for name in command.models if not training_config.has_value(command, find_model(run, name))
    )
    return changing or command.models


def _event_of(
    command: Command, state: ExperimentState, run: Run | None, model: str, *, by: str
) -> ClientEvent:
    kind = command.kind
    if run is None:
        _check(kind, allowed(state), experiment_now(state, kind))
        return event_of_experiment(command, state.name, by=by)
    if kind in CONFIG_COMMANDS and (model or kind not in OF_OPEN):
        return training_config.event_of(command, state, run, find_model(run, model) if model else None, by=by)
    if kind in OF_MODEL:
        return _model_event(kind, state, run, find_model(run, model), by=by)
    if kind is CommandKind.SET_SCHEDULER and command.scheduler not in POLICIES:
        raise SearchSpaceError(
            f"no scheduler {command.scheduler!r}: choose one of {', '.join(sorted(POLICIES))}"
        )
    priority = parse(command.priority) if kind is CommandKind.PRIORITIZE else NORMAL
    _check(kind, allowed(state, run), run_now(state, run))
    if kind is CommandKind.STOP_RUN:
        return RunStopRequested(run=run.id, by=by)
    if kind is CommandKind.RESUME_RUN:
        _check_procedure(command, run)
        return RunResumed(run=run.id, by=by, can_reopen=True, procedure=command.procedure)
    if kind is CommandKind.PRIORITIZE:
        return PriorityChanged(run=run.id, priority=priority, by=by)
    return SchedulerChanged(run=run.id, scheduler=command.scheduler, planner=command.planner, by=by)


def _model_event(
    kind: CommandKind, state: ExperimentState, run: Run, model: Model, *, by: str
) -> ClientEvent:
    may, now = allowed(state, run, model), model_now(state, run, model)
    if kind is CommandKind.RESUME_MODEL and CommandKind.EXTEND_MODEL in may and model.is_trained:
        now = f"{now}. It has trained all its epochs: extend it to train more"
    _check(kind, may, now)
    if kind is CommandKind.STOP_MODEL:
        return ModelStopRequested(run=run.id, model=model.id, by=by)
    if kind is CommandKind.RESUME_MODEL:
        return ModelResumed(run=run.id, model=model.id, by=by, can_reopen=True)
    return ModelRetried(run=run.id, model=model.id, by=by, can_reopen=True)


def _check_procedure(command: Command, run: Run) -> None:
    if command.procedure is None:
        return
    if run.search is None or own_procedure(run) is None:
        raise ConflictError(
            f"{run.id} runs no search with your own procedure, so none can be replaced. Resume it without "
            "`search`"
        )
    if run.search.finish is not None:
        raise ConflictError(
            f"the search of {run.id} is over ({run.search.finish}): resume it without `search`"
        )


def _check(kind: CommandKind, may: frozenset[CommandKind], now: str) -> None:
    if kind not in may:
        unlisted = CONFIG_COMMANDS if kind in OF_MODEL else CONFIG_COMMANDS - OF_OPEN
        possible = ", ".join(sorted(DOES[each] for each in may - unlisted))
        hint = f"; possible now: {possible}" if possible else ""
        raise ConflictError(f"it is not possible to {DOES[kind]}: {now}{hint}")
