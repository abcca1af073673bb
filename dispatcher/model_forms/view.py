"""A model form: fields, the difference that it makes, and errors per field. Pure; `model_forms.page` calls it.

Applies the rules of `cerebro.commands`, which notebooks and the command line use, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from cerebro.commands.command import Command
from cerebro.commands.command_events import problems_of
from cerebro.commands.rules import DOES, CommandKind
from cerebro.commands.selection import chosen_fit, find_model
from cerebro.commands.training_config import Problem, cloned_hyperparams, known_names
from cerebro.commands.values import text_of
from cerebro.contract.priority import parse, shown
from cerebro.contract.runs import NewModel, ParentCheckpoint
from cerebro.errors import BadRequestError
from cerebro.state import ExperimentState, Model, Run
from cerebro.state.models import added_models
from cerebro.state.models.configs import is_same
from cerebro.state.runs.pruning import removal_text
from dispatcher.model_forms.form import COLD, ModelForm
from dispatcher.model_forms.notes import notes, position_text

_MAX_HINT_VALUES = 4
"""Maximum number of other models' values in a hint."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """A text field. `key`: key of its error; `was`: original value; `hint`: values of other models."""

    key: str
    name: str
    text: str
    was: str
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class Start:
    """A possible start of a clone."""

    value: str
    label: str


@dataclass(frozen=True, kw_only=True)
class Line:
    """One changed value as typed. `old_value` is empty for a new value, `new_value` for a dropped hyperparameter."""

    model: str
    name: str
    old_value: str
    new_value: str


@dataclass(frozen=True, kw_only=True)
class ModelFormView:
    """A form and its effect.

    Attributes:
        run: id of the models' run.
        models: ids of the models.
        values: fields of hyperparameters.
        epochs, priority: other fields, if the form has them.
        starts: possible starts of a clone; `start` is selected.
        no_start: why a clone must have new weights, as part of a sentence.
        lines: the difference.
        notes: consequences, in sentences.
        refusal: why the command is impossible now, or an empty text.
        problems: key of a field, or ``form`` -> error and remedy.
        difference: hash of the difference, and for a clone of the copied values.
        is_ready: True if the form can be sent.
    """

    kind: CommandKind
    run: str
    models: tuple[str, ...]
    values: tuple[Field, ...]
    epochs: Field | None
    priority: Field | None
    starts: tuple[Start, ...]
    no_start: str
    start: str
    lines: tuple[Line, ...]
    notes: tuple[str, ...]
    refusal: str
    problems: dict[str, str]
    difference: str
    is_ready: bool
    command: Command


def model_form_view(state: ExperimentState, form: ModelForm) -> ModelFormView:
    """Build the view of a form.

    Raises:
        NotFoundError: the run or a model does not exist.
        BadRequestError: the form needs a model and names none.
    """
    run = chosen_fit(state, form.run or None)
    models = [find_model(run, name) for name in form.models]
    is_new = form.kind is CommandKind.ADD_MODELS
    if not models and not is_new:
        raise BadRequestError(
            "no model is selected: open the form from a model's page, or select models in the table"
        )
    values = tuple(_new_values(run, form) if is_new else _values(run, models[0], form))
    command, problems, refusal = _evaluate(state, run, form, values)
    invalid = {*problems, *(field.name for field in values if field.key in problems)}
    is_requested = form.is_touched or form.kind is CommandKind.CLONE_MODEL  # an identical clone is allowed
    lines = tuple(_lines(run, models, command, invalid)) if is_requested and not refusal else ()
    is_ready = is_requested and not problems and not refusal
    return ModelFormView(
        kind=form.kind,
        run=run.id,
        models=tuple(model.id for model in models),
        values=values,
        epochs=_epochs(run, models, form),
        priority=_priority(models, form),
        starts=tuple(_starts(run, models[0], form.start)) if form.kind is CommandKind.CLONE_MODEL else (),
        no_start=_no_start(run, models[0]) if models else "",
        start=form.start,
        lines=lines,
        notes=tuple(notes(run, models, command)) if is_ready else (),
        refusal=refusal,
        problems=problems if is_requested else {},
        difference=_difference_hash(form, run, models, lines),
        is_ready=is_ready,
        command=command,
    )


# --- fields --------------------------------------------------------------------------------------


def _values(run: Run, model: Model, form: ModelForm) -> Iterator[Field]:
    """Yield a field for each hyperparameter of the model; for a clone also empty ones for the run's others."""
    if form.kind not in (CommandKind.CLONE_MODEL, CommandKind.CHANGE_MODEL):
        return
    known = _known_values(run) if form.kind is CommandKind.CLONE_MODEL else {}
    for number, name in enumerate(dict.fromkeys([*model.hyperparams, *known, *form.values])):
        has_value = name in model.hyperparams
        was = text_of(model.hyperparams[name]) if has_value else ""
        hint = "" if has_value else _values_hint(known.get(name, {}))
        yield Field(key=f"value-{number}", name=name, text=form.values.get(name, was), was=was, hint=hint)


def _new_values(run: Run, form: ModelForm) -> Iterator[Field]:
    """Yield a field for each hyperparameter of the run. A value that all models share is filled in."""
    known = _known_values(run)
    for number, name in enumerate(known | dict.fromkeys(form.values)):
        values = known.get(name, {})
        is_shared = len(values) == 1 and all(name in model.hyperparams for model in run.models.values())
        text = form.values.get(name, next(iter(values)) if is_shared else "")
        hint = "" if is_shared else _values_hint(values)
        yield Field(key=f"value-{number}", name=name, text=text, was="", hint=hint)


def _known_values(run: Run) -> dict[str, dict[str, JsonValue]]:
    """Return the values of the run's models by text, for each of its hyperparameters."""
    known: dict[str, dict[str, JsonValue]] = {name: {} for name in known_names(run)}
    for model in run.models.values():
        for name, value in model.hyperparams.items():
            known[name][text_of(value)] = value
    return known


def _values_hint(values: Mapping[str, JsonValue]) -> str:
    """Describe the values of other models: all if few, else their range or some of them."""
    if len(values) <= _MAX_HINT_VALUES:
        return ", ".join(values)
    numbers = [each for each in values.values() if isinstance(each, int | float)]
    if len(numbers) == len(values):
        return f"{min(numbers):.6g} to {max(numbers):.6g}"
    return f"{', '.join(list(values)[:_MAX_HINT_VALUES])}, \N{HORIZONTAL ELLIPSIS}"


def _epochs(run: Run, models: Sequence[Model], form: ModelForm) -> Field | None:
    if form.kind in (CommandKind.CHANGE_MODEL, CommandKind.PRIORITIZE):
        return None
    have = {model.epochs for model in models} or {run.fit_request.epochs}
    was = str(have.pop()) if len(have) == 1 else ""
    return Field(key="epochs", name="epochs", text=form.epochs or was, was=was)


def _priority(models: Sequence[Model], form: ModelForm) -> Field | None:
    if form.kind is not CommandKind.PRIORITIZE:
        return None
    have = {model.priority for model in models}
    was = shown(have.pop()) if len(have) == 1 else ""
    return Field(key="priority", name="priority", text=form.priority or was, was=was)


def _starts(run: Run, model: Model, chosen: str) -> Iterator[Start]:
    """Yield the possible starts of a clone, and the selected one even if it is gone."""
    possible = list(_possible_starts(run, model))
    yield from possible
    if chosen not in {each.value for each in possible}:
        known = {"last": "its last state (warm)", "best": "its best epoch (warm)"}
        yield Start(value=chosen, label=known.get(chosen, f"the end of epoch {chosen} (warm)"))


def _no_start(run: Run, model: Model) -> str:
    return removal_text(run, model) if model.is_pruned else f"{model.id} has no checkpoint yet"


def _possible_starts(run: Run, model: Model) -> Iterator[Start]:
    yield Start(value=COLD, label="new weights (cold)")
    checkpoints, every = run.kept_checkpoints(model), range(model.completed_epochs, 0, -1)
    ends = [
        epoch
        for epoch in every
        if model.sub_epochs[model.sub_epochs_until(epoch) - 1].checkpoint.name in checkpoints
    ]
    listed = set()
    for at in ("last", "best", *ends):
        checkpoint = ParentCheckpoint.model_validate({"model": model.id, "at": at})
        new = NewModel(hyperparams=model.hyperparams, epochs=model.epochs, checkpoint=checkpoint)
        if added_models.parent_refusal(run, new):
            continue
        sub_epochs = added_models.sub_epochs_at(run, model, checkpoint)
        if at not in ("last", "best") and sub_epochs in listed:
            continue
        listed.add(sub_epochs)
        position = position_text(model, sub_epochs)
        label = {"last": f"its last state (warm): {position}", "best": f"its best epoch (warm): {position}"}
        yield Start(value=str(at), label=label.get(str(at), f"the end of {position} (warm)"))


# --- difference and errors -----------------------------------------------------------------------


def _evaluate(
    state: ExperimentState, run: Run, form: ModelForm, values: Sequence[Field]
) -> tuple[Command, dict[str, str], str]:
    """Return the command, errors by field, and the reason why the state refuses the command."""
    problems: dict[str, str] = {}
    command = form.command({field.name: field.text for field in values})
    keys = {field.name: field.key for field in values}
    for problem in problems_of(command, state):
        message = _sentence(
            str(problem.error).removeprefix(f"it is not possible to {DOES[form.kind]}: "), keys
        )
        if not problem.part:
            return command, {}, message
        problems.setdefault(_key(problem, keys), message)
    return command, problems, ""


def _key(problem: Problem, keys: dict[str, str]) -> str:
    if problem.name:
        return keys.get(problem.name, "form")
    return {"at": "start", "epochs": "epochs", "priority": "priority"}.get(problem.part, "form")


def _lines(run: Run, models: Sequence[Model], command: Command, invalid: Collection[str]) -> Iterator[Line]:
    """Yield the changed values, except for fields with errors."""
    for configuration in command.configurations:
        for name, value in configuration.items():
            if name not in invalid:
                yield Line(model="", name=name, old_value="", new_value=text_of(value))
        if "epochs" not in invalid:
            yield Line(
                model="",
                name="epochs",
                old_value="",
                new_value=text_of(command.epochs or run.fit_request.epochs),
            )
    changed = {name: value for name, value in command.hyperparams.items() if name not in invalid}
    for model in models:
        old = model.hyperparams
        new = (
            cloned_hyperparams(run, model, changed)
            if command.kind is CommandKind.CLONE_MODEL
            else {**old, **changed}
        )
        for name in dict.fromkeys([*old, *new]):
            values = [{name: each[name]} if name in each else {} for each in (old, new)]
            if not is_same(*values):
                old_value, new_value = ("".join(map(text_of, each.values())) for each in values)
                yield Line(model=model.id, name=name, old_value=old_value, new_value=new_value)
        if command.epochs is not None and command.epochs != model.epochs and "epochs" not in invalid:
            yield Line(
                model=model.id, name="epochs", old_value=str(model.epochs), new_value=text_of(command.epochs)
            )
        if command.priority and "priority" not in invalid:
            old_priority, new_priority = shown(model.priority), shown(parse(command.priority))
            if old_priority != new_priority:
                yield Line(model=model.id, name="priority", old_value=old_priority, new_value=new_priority)
        if command.kind is CommandKind.CLONE_MODEL and "start" not in invalid:
            at = {"last": "its last state", "best": "its best epoch"}.get(
                str(command.at), f"epoch {command.at}"
            )
            start = f"the weights of {model.id}: {at}" if command.warm else "new weights"
            yield Line(model=model.id, name="starts with", old_value="", new_value=start)


def _difference_hash(form: ModelForm, run: Run, models: Sequence[Model], lines: Sequence[Line]) -> str:
    copied = (
        [(model.hyperparams, model.epochs, model.priority) for model in models]
        if form.kind is CommandKind.CLONE_MODEL
        else []
    )
    return hashlib.blake2b(
        repr((form.kind, run.id, form.models, lines, copied)).encode(), digest_size=8
    ).hexdigest()


def _sentence(text: str, names: Collection[str] = ()) -> str:
    """Return a sentence: capitalized unless it starts with a name, with a full stop."""
    first = text.partition(" ")[0]
    is_word = first.isalpha() and first not in names and first not in ("epochs", "at")
    begun = text[:1].upper() + text[1:] if is_word else text
    return begun if begun.endswith((".", "!", "?")) else f"{begun}."
