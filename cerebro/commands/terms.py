"""What changes which models a fit trains, and with what: the events, or all that stands against them and what to do
instead. Pure.

What the fold would find too late (`cerebro.state.commands`, `cerebro.state.additions`) is refused here first, as far as
the log tells by now.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from cerebro.commands.rules import DOES, CommandKind, allowed, is_free, model_now, run_now
from cerebro.contract.events import (
    ClientEvent,
    ModelChanged,
    ModelExtended,
    ModelsAdded,
    PriorityChanged,
    SearchStopRequested,
)
from cerebro.contract.priority import parse, shown
from cerebro.contract.records import Hyperparameters
from cerebro.contract.runs import NewModel, Origin
from cerebro.contract.values import carried
from cerebro.errors import BadRequestError, CerebroError, ConflictError, NotFoundError, SearchSpaceError
from cerebro.state import ExperimentState, Model, ModelState, Run, RunState, additions, beside, wording
from cerebro.state.models import is_same

if TYPE_CHECKING:
    from cerebro.commands.command import Command

_MOST = 1_000_000
"""Epochs: what is above it is a slip of the finger."""


_LOGGED = TypeAdapter(Hyperparameters)
_AROUND = 20
"""Objects at most in which answers of the store have hyper-parameters: who reads JSON counts them, too."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Why a command cannot be.

    Attributes:
        part: what in it is wrong, as `Command` calls it; empty if the state does not allow it, whatever is in it.
        name: of ``hyperparams`` and ``configurations``, the hyper-parameter; empty for all together.
        error: to be raised, with what to do instead.
    """

    error: CerebroError
    part: str = ""
    name: str = ""


def event_of(
    command: Command, state: ExperimentState, run: Run, model: Model | None, *, by: str
) -> ClientEvent:
    """The event of one of `rules.NEW_TERMS`.

    Args:
        model: that it is about; `None` for the run as a whole.

    Raises:
        BadRequestError, SearchSpaceError: what was given is none.
        NotFoundError: the model has no such hyper-parameter.
        ConflictError: the state does not allow it.
    """
    for problem in problems(command, state, run, model):
        raise problem.error
    match command.kind, model:
        case CommandKind.CLONE_MODEL, Model():
            return ModelsAdded(run=run.id, models=(_clone(command, model),), by=by, beside=True)
        case CommandKind.CHANGE_MODEL, Model():
            return ModelChanged(run=run.id, model=model.id, hyperparams=_plain(command.hyperparams), by=by)
        case CommandKind.EXTEND_MODEL, Model():
            epochs = command.epochs or model.epochs
            return ModelExtended(run=run.id, model=model.id, epochs=epochs, by=by, beside=True)
        case CommandKind.PRIORITIZE, Model():
            return PriorityChanged(run=run.id, model=model.id, priority=parse(command.priority), by=by)
        case CommandKind.STOP_SEARCH, _:
            return SearchStopRequested(run=run.id, by=by)
    return ModelsAdded(run=run.id, models=tuple(_added(command, run)), by=by, beside=True)


def problems(command: Command, state: ExperimentState, run: Run, model: Model | None) -> list[Problem]:
    """All that stands against one of `rules.NEW_TERMS`, as far as it can be told at once: without any it is possible.

    Args:
        model: see `event_of`.
    """
    kind = command.kind
    if kind not in allowed(state, run, model):
        return [_refused(kind, _why_not(kind, state, run, model))]
    match kind, model:
        case CommandKind.STOP_SEARCH, _:
            return []
        case CommandKind.ADD_MODELS, _:
            return _against_added(command, run)
        case CommandKind.CLONE_MODEL, Model():
            return _against_clone(command, run, model)
        case CommandKind.CHANGE_MODEL, Model():
            return _against_change(command, run, model)
        case CommandKind.EXTEND_MODEL, Model():
            return _against_extension(command, state, run, model)
        case CommandKind.PRIORITIZE, Model():
            return _against_priority(command, model)
    return [Problem(part="models", error=BadRequestError(f"{kind} names no model: name one of {run.id}"))]


def has_already(command: Command, model: Model) -> bool:
    """Whether a model has what a command for several models is to give it."""
    if command.kind is CommandKind.EXTEND_MODEL:
        return command.epochs == model.epochs
    if command.kind is not CommandKind.PRIORITIZE:
        return False
    try:
        return parse(command.priority) == model.priority
    except BadRequestError:
        return False


# --- new models ----------------------------------------------------------------------------------


def _added(command: Command, run: Run) -> Iterator[NewModel]:
    epochs = command.epochs or run.fit_request.epochs
    for each in command.configurations:
        yield NewModel(hyperparams=_plain(each), epochs=epochs)


def _against_added(command: Command, run: Run) -> list[Problem]:
    part = "configurations"
    if not command.configurations:
        error = SearchSpaceError("no models to add: give a list of configurations, such as [{'lr': 0.01}]")
        return [Problem(part=part, error=error)]
    wrong = [problem for each in command.configurations for problem in _unplain(part, each)]
    if known := _known_names(run):
        unknown = dict.fromkeys(name for each in command.configurations for name in each if name not in known)
        wrong += [Problem(part=part, name=name, error=_unknown(run.id, known, name)) for name in unknown]
    wrong += _against_epochs(command.epochs) if command.epochs is not None else []
    return wrong or [
        problem for new in _added(command, run) for problem in _against_size(part, run, new.hyperparams)
    ]


def _clone(command: Command, model: Model) -> NewModel:
    return NewModel(
        hyperparams={**model.hyperparams, **_plain(command.hyperparams)},
        epochs=command.epochs or model.epochs,
        origin=Origin.model_validate({"model": model.id, "at": command.at}) if command.warm else None,
        parent="" if command.warm else model.id,
        priority=model.priority,
    )


def _against_clone(command: Command, run: Run, model: Model) -> list[Problem]:
    wrong = _against_values(command, model)
    wrong += _against_epochs(command.epochs) if command.epochs is not None else []
    at = command.at
    is_epoch = isinstance(at, int) and not isinstance(at, bool) and at >= 1
    problem = ""
    if not is_epoch and at not in ("last", "best"):
        problem = f"at is {at!r}, expected 'last', 'best' or the number of an epoch"
    elif not command.warm and at != "last":
        how = "give warm=True as well, or leave it out"
        problem = f"at={at!r} is for warm clones, which go on from a checkpoint: {how}"
    if problem:
        wrong.append(Problem(part="at", error=BadRequestError(problem)))
    if wrong:
        return wrong
    new = _clone(command, model)
    wrong = _against_size("hyperparams", run, new.hyperparams)
    if problem := additions.origin_refusal(run, new):
        wrong.append(_refused(command.kind, problem, part="at"))
    elif problem := additions.epochs_refusal(run, new):
        wrong.append(_refused(command.kind, problem, part="epochs"))
    return wrong


# --- models that there are -----------------------------------------------------------------------


def _against_change(command: Command, run: Run, model: Model) -> list[Problem]:
    if model.is_trained:
        return [_refused(command.kind, f"{model.id} is trained already: extend it first, or clone it")]
    if wrong := _against_values(command, model):
        return wrong
    after = {**model.hyperparams, **_plain(command.hyperparams)}
    if is_same(after, model.hyperparams):
        told = ", ".join(f"{name}={value!r}" for name, value in command.hyperparams.items())
        why = f"{model.id} has {told or 'nothing else'} already: give a value that differs"
        return [_refused(command.kind, why, part="hyperparams")]
    return _against_size("hyperparams", run, after) if "batch_size" in command.hyperparams else []


def _against_extension(command: Command, state: ExperimentState, run: Run, model: Model) -> list[Problem]:
    kind, epochs = command.kind, command.epochs
    if wrong := _against_epochs(epochs):
        return wrong
    if reader := beside.reader(state.runs, run, model.id):
        return [_refused(kind, f"{reader.id} reads {model.id}: wait for {reader.id}, or stop it first")]
    begun = model.begun_epochs
    if epochs is not None and epochs < begun:
        why = f"{model.id} has begun epoch {begun}: give at least {begun}"
        return [_refused(kind, why, part="epochs")]
    if epochs == model.epochs:
        why = f"{model.id} is trained for {epochs} epochs already: give another number"
        return [_refused(kind, why, part="epochs")]
    return []


def _against_priority(command: Command, model: Model) -> list[Problem]:
    try:
        priority = parse(command.priority)
    except BadRequestError as error:
        return [Problem(part="priority", error=error)]
    if priority == model.priority:
        why = f"the priority of {model.id} is {shown(priority)} already: give another one"
        return [_refused(command.kind, why, part="priority")]
    return []


# --- what was given ------------------------------------------------------------------------------


def _against_epochs(epochs: object) -> list[Problem]:
    if isinstance(epochs, bool) or not isinstance(epochs, int) or not 1 <= epochs <= _MOST:
        error = BadRequestError(f"epochs is {epochs!r}, expected a whole number from 1")
        return [Problem(part="epochs", error=error)]
    return []


def _against_size(part: str, run: Run, hyperparams: Hyperparameters) -> list[Problem]:
    problem = additions.size_refusal(run, hyperparams)
    error = SearchSpaceError(f"{problem}: choose another one, or preprocess more data")
    return [Problem(part=part, name="batch_size", error=error)] if problem else []


def _against_values(command: Command, model: Model) -> list[Problem]:
    """Against hyper-parameters that the model is to have in the place of its own."""
    found = []
    for name, value in command.hyperparams.items():
        if name not in model.hyperparams:
            error = _unknown(f"model {model.id}", model.hyperparams, name)
            found.append(Problem(part="hyperparams", name=name, error=error))
        elif wrong := _unplain("hyperparams", {name: value}):
            found += wrong
        elif problem := _other_kind(model, name, _plain({name: value})[name]):
            found.append(Problem(part="hyperparams", name=name, error=SearchSpaceError(problem)))
    return found


def _known_names(run: Run) -> dict[str, None]:
    """Names of hyper-parameters that models of a fit have, or that its search draws."""
    search = run.fit_request.search
    drawn = dict.fromkeys(search.space if search is not None else ())
    return drawn | dict.fromkeys(name for model in run.models.values() for name in model.hyperparams)


def _unknown(of: str, known: Collection[str], name: str) -> NotFoundError:
    similar = difflib.get_close_matches(str(name), list(known), n=3, cutoff=0.5)
    there = ", ".join(similar or known)
    return NotFoundError(
        f"{of} has no hyper-parameter {name!r}; there is {there}. Models with other names are for another run_fit"
    )


def _other_kind(model: Model, name: str, value: object) -> str:
    """Why a text cannot be where there is a number, as a slip on the command line gives it, and the like."""
    before = model.hyperparams[name]
    kinds = {bool: "true or false", int: "a number", float: "a number", str: "a text"}
    expected, found = kinds.get(type(before)), kinds.get(type(value))
    if expected and found and expected != found:
        return f"{name} of model {model.id} is {before!r}, and {value!r} is {found}: give {expected}"
    return ""


def _unplain(part: str, given: Mapping[str, Any]) -> list[Problem]:
    """What JSON or the log cannot say."""
    found = []
    for name, value in given.items():
        try:
            _check_log(_plain({name: value}))
        except (TypeError, ValueError, RecursionError) as cause:
            error = SearchSpaceError(f"{name}={value!r:.80} cannot be carried exactly: it {cause}")
            error.__cause__ = cause
            found.append(Problem(part=part, name=str(name), error=error))
    return found


def _plain(given: Mapping[str, Any]) -> Hyperparameters:
    """The hyper-parameters that user code gets; ValueError if JSON cannot hold them exactly."""
    return {name: carried(value) for name, value in given.items()}


def _check_log(given: Hyperparameters) -> None:
    """Raise `ValueError` if what JSON says cannot be written into the log and read there."""
    text = json.dumps(given, ensure_ascii=False).encode()
    try:
        _LOGGED.validate_json(b'{"":' * _AROUND + text + b"}" * _AROUND)
    except ValueError as cause:
        raise ValueError("is nested too deeply") from cause


# --- why not -------------------------------------------------------------------------------------


def _refused(kind: CommandKind, why: str, *, part: str = "") -> Problem:
    return Problem(part=part, error=ConflictError(f"it is not possible to {DOES[kind]}: {why}"))


def _why_not(kind: CommandKind, state: ExperimentState, run: Run, model: Model | None) -> str:
    """Of a command that is not allowed now."""
    if state.deletion is not None or run.fatal is not None or not is_free(state, run):
        return run_now(state, run)
    if run.state is RunState.STOPPING:
        return f"{run.id} is stopping: wait until it is stopped, then ask again"
    if kind is CommandKind.STOP_SEARCH and run.is_open:
        return (
            "its search was stopped already"
            if run.search
            else f"{run.id} has no search: stop it, or single models"
        )
    if run.plan is None:
        return f"{run.id} is {wording.run(run)}: wait until it has begun"
    if model is None:
        return run_now(state, run)
    now = model_now(state, run, model)
    if model.is_pruned:
        return now
    match model.state:
        case ModelState.FAILED:
            return f"{now}: retry it first, or clone it"
        case ModelState.FINISHED:
            return f"{now}: clone it with other values, or extend it first"
        case _:
            return f"{now}: resume it first, or clone it"
