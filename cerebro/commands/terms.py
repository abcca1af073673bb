"""What changes which models a fit trains, and with what: the events, or why not and what to do instead. Pure.

What the fold would find too late (`cerebro.state.commands`, `cerebro.state.additions`) is refused here first, as far as
the log tells by now.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from cerebro.commands.rules import DOES, CommandKind, allowed, is_free, run_now
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
from cerebro.errors import BadRequestError, ConflictError, NotFoundError, SearchSpaceError
from cerebro.state import ExperimentState, Model, ModelState, Run, RunState, additions, beside, wording
from cerebro.state.models import is_same

if TYPE_CHECKING:
    from cerebro.commands.command import Command

_MOST = 1_000_000
"""Epochs: what is above it is a slip of the finger."""


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
    if command.kind not in allowed(state, run, model):
        _refuse(command.kind, _why_not(command.kind, state, run, model))
    match command.kind, model:
        case CommandKind.STOP_SEARCH, _:
            return SearchStopRequested(run=run.id, by=by)
        case CommandKind.ADD_MODELS, _:
            return _added(command, run, by=by)
        case CommandKind.CLONE_MODEL, Model():
            return _cloned(command, run, model, by=by)
        case CommandKind.CHANGE_MODEL, Model():
            return _changed(command, run, model, by=by)
        case CommandKind.EXTEND_MODEL, Model():
            return _extended(command, state, run, model, by=by)
        case CommandKind.PRIORITIZE, Model():
            return _prioritized(command, run, model, by=by)
    raise BadRequestError(f"{command.kind} names no model: name one of {run.id}")


# --- new models ----------------------------------------------------------------------------------


def _added(command: Command, run: Run, *, by: str) -> ModelsAdded:
    if not command.configurations:
        raise SearchSpaceError("no models to add: give a list of configurations, such as [{'lr': 0.01}]")
    epochs = run.fit_request.epochs if command.epochs is None else _epochs(command.epochs)
    return _checked(
        command.kind,
        run,
        [NewModel(hyperparams=_plain(each), epochs=epochs) for each in command.configurations],
        by,
    )


def _cloned(command: Command, run: Run, model: Model, *, by: str) -> ModelsAdded:
    changed = _known(command.hyperparams, model)
    epochs = model.epochs if command.epochs is None else _epochs(command.epochs)
    at = command.at
    is_epoch = isinstance(at, int) and not isinstance(at, bool) and at >= 1
    if not is_epoch and at not in ("last", "best"):
        raise BadRequestError(f"at is {at!r}, expected 'last', 'best' or the number of an epoch")
    if not command.warm and at != "last":
        raise BadRequestError(
            f"at={at!r} is for warm clones, which go on from a checkpoint: give warm=True as well, or leave it out"
        )
    new = NewModel(
        hyperparams={**model.hyperparams, **changed},
        epochs=epochs,
        origin=Origin.model_validate({"model": model.id, "at": at}) if command.warm else None,
        parent="" if command.warm else model.id,
        priority=model.priority,
    )
    return _checked(command.kind, run, [new], by)


def _checked(kind: CommandKind, run: Run, models: list[NewModel], by: str) -> ModelsAdded:
    for new in models:
        if problem := additions.size_refusal(run, new.hyperparams):
            raise SearchSpaceError(f"{problem}: choose another one, or preprocess more data")
        if problem := additions.refusal(run, new):
            _refuse(kind, problem)
    return ModelsAdded(run=run.id, models=tuple(models), by=by, beside=True)


# --- models that there are -----------------------------------------------------------------------


def _changed(command: Command, run: Run, model: Model, *, by: str) -> ModelChanged:
    if model.is_trained:
        _refuse(command.kind, f"{model.id} is trained already: extend it first, or clone it")
    changed = _known(command.hyperparams, model)
    after = {**model.hyperparams, **changed}
    if is_same(after, model.hyperparams):
        told = ", ".join(f"{name}={value!r}" for name, value in changed.items()) or "nothing else"
        _refuse(command.kind, f"{model.id} has {told} already: give a value that differs")
    if "batch_size" in changed and (problem := additions.size_refusal(run, after)):
        raise SearchSpaceError(f"{problem}: choose another one, or preprocess more data")
    return ModelChanged(run=run.id, model=model.id, hyperparams=changed, by=by)


def _extended(command: Command, state: ExperimentState, run: Run, model: Model, *, by: str) -> ModelExtended:
    epochs = _epochs(command.epochs)
    if reader := beside.reader(state.runs, run, model.id):
        _refuse(command.kind, f"{reader.id} reads {model.id}: wait for {reader.id}, or stop it first")
    if epochs < model.begun_epochs:
        _refuse(
            command.kind,
            f"{model.id} has begun epoch {model.begun_epochs}: give at least {model.begun_epochs}",
        )
    if epochs == model.epochs:
        _refuse(command.kind, f"{model.id} is trained for {epochs} epochs already: give another number")
    return ModelExtended(run=run.id, model=model.id, epochs=epochs, by=by, beside=True)


def _prioritized(command: Command, run: Run, model: Model, *, by: str) -> PriorityChanged:
    priority = parse(command.priority)
    if priority == model.priority:
        _refuse(command.kind, f"the priority of {model.id} is {shown(priority)} already: give another one")
    return PriorityChanged(run=run.id, model=model.id, priority=priority, by=by)


# --- what was given ------------------------------------------------------------------------------


def _epochs(epochs: object) -> int:
    if isinstance(epochs, bool) or not isinstance(epochs, int) or not 1 <= epochs <= _MOST:
        raise BadRequestError(f"epochs is {epochs!r}, expected a whole number from 1")
    return epochs


def _known(given: Mapping[str, Any], model: Model) -> Hyperparameters:
    """Hyper-parameters that the model has, with other values."""
    for name in given:
        if name not in model.hyperparams:
            similar = difflib.get_close_matches(str(name), list(model.hyperparams), n=3, cutoff=0.5)
            there = ", ".join(similar or model.hyperparams)
            raise NotFoundError(
                f"model {model.id} has no hyper-parameter {name!r}; there is {there}. A model with other names can be "
                "added by add_models"
            )
    found = _plain(given)
    for name, value in found.items():
        _check_kind(model, name, value)
    return found


def _check_kind(model: Model, name: str, value: object) -> None:
    """Refuse a text where there is a number, as a slip on the command line gives it, and the like."""
    before = model.hyperparams[name]
    kinds = {bool: "true or false", int: "a number", float: "a number", str: "a text"}
    expected, found = kinds.get(type(before)), kinds.get(type(value))
    if expected and found and expected != found:
        raise SearchSpaceError(
            f"{name} of model {model.id} is {before!r}, and {value!r} is {found}: give {expected}"
        )


def _plain(given: Mapping[str, Any]) -> Hyperparameters:
    """As user code will have them: what JSON can say."""
    try:
        found: Hyperparameters = json.loads(json.dumps(dict(given), allow_nan=False).encode())
    except (TypeError, ValueError) as cause:
        raise SearchSpaceError(
            f"{dict(given)!r} are no hyper-parameters ({cause}): use numbers, text, booleans, or lists and dicts of "
            "them"
        ) from cause
    return found


# --- why not -------------------------------------------------------------------------------------


def _refuse(kind: CommandKind, why: str) -> NoReturn:
    raise ConflictError(f"it is not possible to {DOES[kind]}: {why}")


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
    now = f"model {model.id} of {run.id} is {wording.model(model, run)}"
    match model.state:
        case ModelState.FAILED:
            return f"{now}: retry it first, or clone it"
        case ModelState.FINISHED:
            return f"{now}: clone it with other values, or extend it first"
        case _:
            return f"{now}: resume it first, or clone it"
