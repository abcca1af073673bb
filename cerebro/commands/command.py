"""A command of a user, and the events that it is: the same from the page, a notebook and the command line. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cerebro.commands import terms
from cerebro.commands.chosen import about, find_model
from cerebro.commands.rules import (
    DOES,
    NEW_TERMS,
    OF_MODEL,
    OF_OPEN,
    CommandKind,
    allowed,
    experiment_now,
    model_now,
    run_now,
)
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
from cerebro.contract.search import OwnProcedure
from cerebro.errors import CerebroError, ConflictError, PartlyDoneError, SearchSpaceError
from cerebro.scheduling.policies import POLICIES
from cerebro.state import CommandRecord, ExperimentState, Model, Run, wording
from cerebro.state.search_reports import own_procedure


@dataclass(frozen=True, kw_only=True)
class Command:
    """What somebody asks for.

    Attributes:
        run: what it is about; by default what `about` says.
        models: of that run, for commands on models; one or more.
        scheduler, planner: of `CommandKind.SET_SCHEDULER`.
        priority: of `CommandKind.PRIORITIZE`: a name, a number or its digits.
        confirm: of `CommandKind.DELETE`, the experiment's name once more.
        configurations: of `CommandKind.ADD_MODELS`, hyper-parameters of each new model.
        hyperparams: of `CHANGE_MODEL` and `CLONE_MODEL`, those that are to differ.
        epochs: of `EXTEND_MODEL`, and of new models, for how many each is trained in all; `None`: as its run, or the
            model that it is a clone of.
        procedure: of `RESUME_RUN`, what a search's own procedure is from then on; `None`: it stays.
        at, warm: of `CLONE_MODEL`, whether it goes on from the other one's state, and from which: as in `Origin`.
    """

    kind: CommandKind
    run: str | None = None
    models: tuple[str, ...] = ()
    scheduler: str = ""
    planner: bool = True
    priority: str | int = ""
    confirm: str = ""
    configurations: tuple[Mapping[str, Any], ...] = ()
    hyperparams: Mapping[str, Any] = field(default_factory=dict)
    epochs: int | None = None
    procedure: OwnProcedure | None = None
    at: str | int = "last"
    warm: bool = False


def events_of(command: Command, state: ExperimentState, *, by: str) -> tuple[ClientEvent, ...]:
    """The events that a command is: one, or one for each of its models.

    Args:
        by: who asks, for the log.

    Raises:
        NotFoundError: there is no such run, or it has no such model.
        SearchSpaceError: there is no such scheduler, or a model cannot have such hyper-parameters.
        BadRequestError: there is no such priority or number of epochs.
        ConflictError: the state does not allow it, for any one of the models; nothing is to be sent then. Of several
            models, those that have the value already are left out, unless all have it.
    """
    run = about(command.kind, state, command.run, is_of_models=bool(command.models))
    is_of_open = command.kind in OF_OPEN and not command.models
    if state.deletion is None and is_of_open and command.run is None and run and not run.is_open:
        now = f"no run of experiment {state.name!r} is open ({run.id} is {wording.run(run)})"
        raise ConflictError(f"it is not possible to {DOES[command.kind]}: {now}")
    return tuple(_event_of(command, state, run, model, by=by) for model in _changing(command, run))


def problems_of(command: Command, state: ExperimentState) -> list[terms.Problem]:
    """All that stands against a command of `rules.NEW_TERMS`, each with what it is about; none if it is possible.

    Raises:
        NotFoundError: there is no such run, or it has no such model.
    """
    run = about(command.kind, state, command.run, is_of_models=bool(command.models))
    assert run is not None
    models = (find_model(run, model) if model else None for model in _changing(command, run))
    return [problem for model in models for problem in terms.problems(command, state, run, model)]


def outcomes(
    command: Command, state: ExperimentState, seqs: Collection[int], *, by: str
) -> tuple[CommandRecord, ...]:
    """What became of a command.

    Args:
        state: that knows its events, which are of these numbers of the log.

    Raises:
        PartlyDoneError: somebody was faster, so it had no effect on some of the models; says on which it had.
        ConflictError: it had none at all. Both say what stands against it now.
    """
    found = tuple(record for record in state.commands if record.seq in seqs)
    late = tuple(record.model for record in found if record.is_late)
    if not late:
        return found
    done = ", ".join(record.model for record in found if not record.is_late)
    why = f"it came too late to {DOES[command.kind]}: others have changed the run since"
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
    """The event that a command to a whole experiment is, whatever its log says: also if nobody can read it.

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
    """Models that a command is to change: of several, not those that have the value already, unless all have it."""
    if run is None or len(command.models) < 2:
        return command.models or ("",)
    changing = tuple(name for name in command.models if not terms.has_already(command, find_model(run, name)))
    return changing or command.models


def _event_of(
    command: Command, state: ExperimentState, run: Run | None, model: str, *, by: str
) -> ClientEvent:
    kind = command.kind
    if run is None:
        _check(kind, allowed(state), experiment_now(state, kind))
        return event_of_experiment(command, state.name, by=by)
    if kind in NEW_TERMS and (model or kind not in OF_OPEN):
        return terms.event_of(command, state, run, find_model(run, model) if model else None, by=by)
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
        return RunResumed(run=run.id, by=by, beside=True, procedure=command.procedure)
    if kind is CommandKind.PRIORITIZE:
        return PriorityChanged(run=run.id, priority=priority, by=by)
    return SchedulerChanged(run=run.id, scheduler=command.scheduler, planner=command.planner, by=by)


def _model_event(
    kind: CommandKind, state: ExperimentState, run: Run, model: Model, *, by: str
) -> ClientEvent:
    may, now = allowed(state, run, model), model_now(state, run, model)
    if kind is CommandKind.RESUME_MODEL and CommandKind.EXTEND_MODEL in may and model.is_trained:
        now = f"{now}. It has trained all epochs that it was given: extend it to more, and it goes on"
    _check(kind, may, now)
    if kind is CommandKind.STOP_MODEL:
        return ModelStopRequested(run=run.id, model=model.id, by=by)
    if kind is CommandKind.RESUME_MODEL:
        return ModelResumed(run=run.id, model=model.id, by=by, beside=True)
    return ModelRetried(run=run.id, model=model.id, by=by, beside=True)


def _check_procedure(command: Command, run: Run) -> None:
    """Whether the run has a procedure that could be replaced, if one is to be."""
    if command.procedure is None:
        return
    if run.search is None or own_procedure(run) is None:
        raise ConflictError(
            f"{run.id} has no search by a procedure of your own that has begun, so there is none to be replaced: "
            "resume it without `search`"
        )
    if run.search.finish is not None:
        raise ConflictError(
            f"the search of {run.id} is over ({run.search.finish}): resume it without `search`"
        )


def _check(kind: CommandKind, may: frozenset[CommandKind], now: str) -> None:
    if kind not in may:
        untold = NEW_TERMS if kind in OF_MODEL else NEW_TERMS - OF_OPEN
        others = ", ".join(sorted(DOES[each] for each in may - untold))
        hint = f"; possible now: {others}" if others else ""
        raise ConflictError(f"it is not possible to {DOES[kind]}: {now}{hint}")
