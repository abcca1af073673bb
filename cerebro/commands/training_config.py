"""Commands that add models or change hyperparameters, epochs or priority of models: events, or problems. Pure.

`cerebro.commands.command_events` calls it; the page also shows all problems of a form. The fold refuses such commands
too (`cerebro.state.runs.commands`, `cerebro.state.models.added_models`). Checking here first gives users an early and
precise error.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from cerebro.commands.command import Command
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
from cerebro.contract.runs import NewModel, ParentCheckpoint
from cerebro.contract.search import Space
from cerebro.contract.values import carried
from cerebro.errors import BadRequestError, CerebroError, ConflictError, NotFoundError, SearchSpaceError
from cerebro.search.sampling import applicable
from cerebro.state import ExperimentState, Model, ModelState, Run, RunState
from cerebro.state.models import added_models
from cerebro.state.models.configs import is_same
from cerebro.state.reports import state_words
from cerebro.state.runs import concurrent_runs

_MAX_EPOCHS = 1_000_000
"""Maximum number of epochs; a larger one is probably a typing error."""


_LOGGED = TypeAdapter(Hyperparameters)
_NESTING = 20
"""Nesting depth that the store's answers add around hyperparameters; JSON parsers limit the total."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Reason why a command is impossible.

    Attributes:
        part: name of the wrong field of `Command`, or an empty text if the state does not allow the command at all.
        name: the hyperparameter, within ``hyperparams`` or ``configurations``, or an empty text for all of them.
        error: exception to raise. Its message has a remedy.
    """

    error: CerebroError
    part: str = ""
    name: str = ""


def event_of(
    command: Command, state: ExperimentState, run: Run, model: Model | None, *, by: str
) -> ClientEvent:
    """Return the event of a command of `rules.CONFIG_COMMANDS`.

    Args:
        model: the model to change; `None` for a command to the run.

    Raises:
        BadRequestError, SearchSpaceError: a value is invalid.
        NotFoundError: the model lacks the hyperparameter.
        ConflictError: the state does not allow the command.
    """
    for problem in problems(command, state, run, model):
        raise problem.error
    match command.kind, model:
        case CommandKind.CLONE_MODEL, Model():
            return ModelsAdded(run=run.id, models=(_clone(command, run, model),), by=by, can_reopen=True)
        case CommandKind.CHANGE_MODEL, Model():
            return ModelChanged(run=run.id, model=model.id, hyperparams=_plain(command.hyperparams), by=by)
        case CommandKind.EXTEND_MODEL, Model():
            epochs = command.epochs or model.epochs
            return ModelExtended(run=run.id, model=model.id, epochs=epochs, by=by, can_reopen=True)
        case CommandKind.PRIORITIZE, Model():
            return PriorityChanged(run=run.id, model=model.id, priority=parse(command.priority), by=by)
        case CommandKind.STOP_SEARCH, _:
            return SearchStopRequested(run=run.id, by=by)
    return ModelsAdded(run=run.id, models=tuple(_added(command, run)), by=by, can_reopen=True)


def problems(command: Command, state: ExperimentState, run: Run, model: Model | None) -> list[Problem]:
    """Return all problems of a command of `rules.CONFIG_COMMANDS` that the present state shows.

    Args:
        model: the model to change; `None` for a command to the run.
    """
    kind = command.kind
    if kind not in allowed(state, run, model):
        return [_refused(kind, _refusal_reason(kind, state, run, model))]
    match kind, model:
        case CommandKind.STOP_SEARCH, _:
            return []
        case CommandKind.ADD_MODELS, _:
            return _problems_of_added(command, run)
        case CommandKind.CLONE_MODEL, Model():
            return _problems_of_clone(command, run, model)
        case CommandKind.CHANGE_MODEL, Model():
            return _problems_of_change(command, run, model)
        case CommandKind.EXTEND_MODEL, Model():
            return _problems_of_extension(command, state, run, model)
        case CommandKind.PRIORITIZE, Model():
            return _problems_of_priority(command, model)
    return [Problem(part="models", error=BadRequestError(f"{kind} names no model: name one of {run.id}"))]


def has_value(command: Command, model: Model) -> bool:
    """Return True if a model already has the value that the command sets."""
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


def _problems_of_added(command: Command, run: Run) -> list[Problem]:
    part = "configurations"
    if not command.configurations:
        error = SearchSpaceError("no models to add: give a list of configurations, such as [{'lr': 0.01}]")
        return [Problem(part=part, error=error)]
    wrong = [problem for each in command.configurations for problem in _unrepresentable(part, each)]
    if known := known_names(run):
        unknown = dict.fromkeys(name for each in command.configurations for name in each if name not in known)
        wrong += [Problem(part=part, name=name, error=_unknown(run.id, known, name)) for name in unknown]
    wrong += _problems_of_epochs(command.epochs) if command.epochs is not None else []
    if wrong:
        return wrong
    for new in _added(command, run):
        wrong += _problems_of_conditions(part, run, new.hyperparams)
        wrong += _problems_of_size(part, run, new.hyperparams)
    return wrong


def cloned_hyperparams(run: Run, model: Model, changed: Mapping[str, Any]) -> Hyperparameters:
    """Return the hyperparameters of a clone: those of its parent that still apply, and the changed ones.

    Raises:
        ValueError: JSON cannot represent a changed value exactly.
    """
    values = _plain(changed)
    return {**applicable(_space(run), {**model.hyperparams, **values}), **values}


def _clone(command: Command, run: Run, model: Model) -> NewModel:
    return NewModel(
        hyperparams=cloned_hyperparams(run, model, command.hyperparams),
        epochs=command.epochs or model.epochs,
        checkpoint=ParentCheckpoint.model_validate({"model": model.id, "at": command.at})
        if command.warm
        else None,
        parent="" if command.warm else model.id,
        priority=model.priority,
    )


def _problems_of_clone(command: Command, run: Run, model: Model) -> list[Problem]:
    wrong = _problems_of_values(command, model, known_names(run))
    wrong += _problems_of_epochs(command.epochs) if command.epochs is not None else []
    at = command.at
    is_epoch = isinstance(at, int) and not isinstance(at, bool) and at >= 1
    problem = ""
    if not is_epoch and at not in ("last", "best"):
        problem = f"at is {at!r}, expected 'last', 'best' or the number of an epoch"
    elif not command.warm and at != "last":
        how = "give warm=True as well, or leave it out"
        problem = f"at={at!r} is for warm clones, which start from a checkpoint: {how}"
    if problem:
        wrong.append(Problem(part="at", error=BadRequestError(problem)))
    if wrong:
        return wrong
    new = _clone(command, run, model)
    wrong = _problems_of_conditions("hyperparams", run, new.hyperparams, model)
    wrong += _problems_of_size("hyperparams", run, new.hyperparams)
    if problem := added_models.parent_refusal(run, new):
        wrong.append(_refused(command.kind, problem, part="at"))
    elif problem := added_models.epochs_refusal(run, new):
        wrong.append(_refused(command.kind, problem, part="epochs"))
    return wrong


# --- existing models -----------------------------------------------------------------------------


def _problems_of_change(command: Command, run: Run, model: Model) -> list[Problem]:
    if model.is_trained:
        return [_refused(command.kind, f"{model.id} is trained already: extend it first, or clone it")]
    if wrong := _problems_of_values(command, model, model.hyperparams):
        return wrong
    hyperparams = {**model.hyperparams, **_plain(command.hyperparams)}
    if is_same(hyperparams, model.hyperparams):
        values = ", ".join(f"{name}={value!r}" for name, value in command.hyperparams.items())
        why = f"{model.id} has {values or 'nothing else'} already: give a value that differs"
        return [_refused(command.kind, why, part="hyperparams")]
    if missing := [reason for _, reason in _missing(run, model, hyperparams)]:
        return [_refused(command.kind, f"{missing[0]}: clone {model.id} instead", part="hyperparams")]
    return _problems_of_size("hyperparams", run, hyperparams) if "batch_size" in command.hyperparams else []


def _problems_of_extension(command: Command, state: ExperimentState, run: Run, model: Model) -> list[Problem]:
    kind, epochs = command.kind, command.epochs
    if wrong := _problems_of_epochs(epochs):
        return wrong
    if reader := concurrent_runs.reader(state.runs, run, model.id):
        return [_refused(kind, f"{reader.id} reads {model.id}: wait for {reader.id}, or stop it first")]
    begun = model.begun_epochs
    if epochs is not None and epochs < begun:
        why = f"{model.id} has begun epoch {begun}: give at least {begun}"
        return [_refused(kind, why, part="epochs")]
    if epochs == model.epochs:
        why = f"{model.id} is trained for {epochs} epochs already: give another number"
        return [_refused(kind, why, part="epochs")]
    return []


def _problems_of_priority(command: Command, model: Model) -> list[Problem]:
    try:
        priority = parse(command.priority)
    except BadRequestError as error:
        return [Problem(part="priority", error=error)]
    if priority == model.priority:
        why = f"the priority of {model.id} is {shown(priority)} already: give another one"
        return [_refused(command.kind, why, part="priority")]
    return []


# --- checks of values ----------------------------------------------------------------------------


def _problems_of_epochs(epochs: object) -> list[Problem]:
    if isinstance(epochs, bool) or not isinstance(epochs, int) or not 1 <= epochs <= _MAX_EPOCHS:
        error = BadRequestError(f"epochs is {epochs!r}, expected a whole number from 1")
        return [Problem(part="epochs", error=error)]
    return []


def _problems_of_size(part: str, run: Run, hyperparams: Hyperparameters) -> list[Problem]:
    problem = added_models.size_refusal(run, hyperparams)
    error = SearchSpaceError(f"{problem}: choose another one, or preprocess more data")
    return [Problem(part=part, name="batch_size", error=error)] if problem else []


def _problems_of_values(command: Command, model: Model, known: Collection[str]) -> list[Problem]:
    found = []
    for name, value in command.hyperparams.items():
        if name not in known:
            error = _unknown(f"model {model.id}", known, name)
            found.append(Problem(part="hyperparams", name=name, error=error))
        elif wrong := _unrepresentable("hyperparams", {name: value}):
            found += wrong
        elif problem := _other_kind(model, name, _plain({name: value})[name]):
            found.append(Problem(part="hyperparams", name=name, error=SearchSpaceError(problem)))
    return found


def known_names(run: Run) -> dict[str, None]:
    """Return the names of hyperparameters in a fit's models and its search space."""
    return dict.fromkeys(_space(run)) | dict.fromkeys(
        name for model in run.models.values() for name in model.hyperparams
    )


def _space(run: Run) -> Space:
    """Return the search space with its conditions; empty for a fit without a search and without conditions."""
    search = run.fit_request.search
    return run.fit_request.space or (search.space if search is not None else {})


def _problems_of_conditions(
    part: str, run: Run, hyperparams: Hyperparameters, parent: Model | None = None
) -> list[Problem]:
    """Return the hyperparameters of a new model that conditions require or forbid."""
    found = [(name, f"{why}: give its value as well") for name, why in _missing(run, parent, hyperparams)]
    for name, distribution in _space(run).items():
        if name in hyperparams and distribution.when and not distribution.applies(hyperparams):
            needed = " and ".join(
                f"{each}={' or '.join(map(repr, values))}" for each, values in distribution.when.items()
            )
            found.append((name, f"{name!r} is only for models with {needed}: leave it out, or change these"))
    return [Problem(part=part, name=name, error=SearchSpaceError(why)) for name, why in found]


def _missing(run: Run, model: Model | None, hyperparams: Hyperparameters) -> Iterator[tuple[str, str]]:
    """Yield the hyperparameters with conditions that new values require and lack, each with the reason.

    Args:
        model: the present model; `None` for a new one.
    """
    for name, distribution in _space(run).items():
        if name not in hyperparams and distribution.when and distribution.applies(hyperparams):
            if model is not None and distribution.applies(model.hyperparams):
                continue  # the model trains without it
            parents = ", ".join(f"{parent}={hyperparams[parent]!r}" for parent in distribution.when)
            yield name, f"a model with {parents} also needs {name!r}"


def _unknown(owner: str, known: Collection[str], name: str) -> NotFoundError:
    similar = difflib.get_close_matches(str(name), list(known), n=3, cutoff=0.5)
    shown_names = ", ".join(similar or known)
    return NotFoundError(
        f"{owner} has no hyperparameter {name!r}; there is {shown_names}. Models with "
        "other names are for another run_fit"
    )


def _other_kind(model: Model, name: str, value: object) -> str:
    """Describe a change of type, such as a text in place of a number, or return an empty text."""
    present_value = model.hyperparams.get(name)
    kinds = {bool: "true or false", int: "a number", float: "a number", str: "a text"}
    expected, found = kinds.get(type(present_value)), kinds.get(type(value))
    if expected and found and expected != found:
        return f"{name} of model {model.id} is {present_value!r}, and {value!r} is {found}: give {expected}"
    return ""


def _unrepresentable(part: str, values: Mapping[str, Any]) -> list[Problem]:
    """Return the values that JSON or the log cannot represent."""
    found = []
    for name, value in values.items():
        try:
            _check_log(_plain({name: value}))
        except (TypeError, ValueError, RecursionError) as cause:
            error = SearchSpaceError(f"{name}={value!r:.80} cannot be carried exactly: it {cause}")
            error.__cause__ = cause
            found.append(Problem(part=part, name=str(name), error=error))
    return found


def _plain(values: Mapping[str, Any]) -> Hyperparameters:
    """Return the hyperparameters as user code receives them.

    Raises:
        ValueError: JSON cannot represent a value exactly.
    """
    return {name: carried(value) for name, value in values.items()}


def _check_log(values: Hyperparameters) -> None:
    """Raise `ValueError` if the log cannot store the hyperparameters or they are nested too deeply."""
    text = json.dumps(values, ensure_ascii=False).encode()
    try:
        _LOGGED.validate_json(b'{"":' * _NESTING + text + b"}" * _NESTING)
    except ValueError as cause:
        raise ValueError("is nested too deeply") from cause


# --- reasons for refusals ------------------------------------------------------------------------


def _refused(kind: CommandKind, why: str, *, part: str = "") -> Problem:
    return Problem(part=part, error=ConflictError(f"it is not possible to {DOES[kind]}: {why}"))


def _refusal_reason(kind: CommandKind, state: ExperimentState, run: Run, model: Model | None) -> str:
    """Return the reason why a command is not allowed now."""
    if state.deletion is not None or run.failures.fatal is not None or not is_free(state, run):
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
        return f"{run.id} is {state_words.run(run)}: wait until it has begun"
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
