"""A form about the terms of models: its fields, the difference that it makes, and all that stands against it. Pure.

The rules are those of `cerebro.commands`, for page, notebook and command line alike; here each is put beside its field.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from cerebro.commands.chosen import chosen_fit, find_model
from cerebro.commands.command import Command, problems_of
from cerebro.commands.rules import DOES, CommandKind
from cerebro.commands.terms import Problem
from cerebro.commands.values import text_of
from cerebro.contract.priority import parse, shown
from cerebro.contract.runs import NewModel, Origin
from cerebro.errors import BadRequestError
from cerebro.state import ExperimentState, Model, Run, additions
from cerebro.state.models import is_same
from cerebro.state.pruning import gone_text
from dispatcher.terms.form import COLD, TermsForm
from dispatcher.terms.notes import notes

_NAMED = 4
"""Values of other models that a hint names."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field for text. `key`: of its problem; `was`: what it asks to be left as it is; `hint`: what others have."""

    key: str
    name: str
    text: str
    was: str
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where a clone may begin: the value of the choice, and what it is."""

    value: str
    label: str


@dataclass(frozen=True, kw_only=True)
class Line:
    """What is to differ, as it is typed; `before` is empty of what is new."""

    model: str
    name: str
    before: str
    after: str


@dataclass(frozen=True, kw_only=True)
class TermsView:
    """A form, and what it comes to.

    Attributes:
        run: whose models it is about; `models`: their ids.
        values: fields of hyper-parameters; `epochs`, `priority`: the others, where there are any.
        starts: where a clone may begin; `start`: the one chosen; `no_start`: why there is none but new weights, a part
            of a sentence.
        lines: the difference; `notes`: what it brings about, in sentences.
        refusal: why this cannot be asked for now, whatever is typed; empty if it can.
        problems: key of a field, or ``form`` -> what is wrong with it and what to do.
        seen: tells this difference from any other; of a clone, also what it takes over.
        is_ready: whether it can be sent.
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
    seen: str
    is_ready: bool
    command: Command


def terms(state: ExperimentState, form: TermsForm) -> TermsView:
    """The form as it stands.

    Raises:
        NotFoundError: there is no such run, or it has no such model.
        BadRequestError: it is about a model, and names none.
    """
    run = chosen_fit(state, form.run or None)
    models = [find_model(run, name) for name in form.models]
    is_new = form.kind is CommandKind.ADD_MODELS
    if not models and not is_new:
        raise BadRequestError(
            "no model was chosen: open the form from a model's page, or tick models in the table"
        )
    values = tuple(_new_values(run, form) if is_new else _values(models[0], form))
    command, problems, refusal = _judged(state, run, form, values)
    wrong = {*problems, *(field.name for field in values if field.key in problems)}
    asks = form.is_touched or form.kind is CommandKind.CLONE_MODEL  # a twin may be meant
    lines = tuple(_lines(run, models, command, wrong)) if asks and not refusal else ()
    is_ready = asks and not problems and not refusal
    return TermsView(
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
        problems=problems if asks else {},
        seen=_seen(form, run, models, lines),
        is_ready=is_ready,
        command=command,
    )


# --- fields --------------------------------------------------------------------------------------


def _values(model: Model, form: TermsForm) -> Iterator[Field]:
    if form.kind not in (CommandKind.CLONE_MODEL, CommandKind.CHANGE_MODEL):
        return
    unknown = (name for name in form.values if name not in model.hyperparams)
    for number, name in enumerate([*model.hyperparams, *unknown]):
        was = text_of(model.hyperparams[name]) if name in model.hyperparams else ""
        yield Field(key=f"value-{number}", name=name, text=form.values.get(name, was), was=was)


def _new_values(run: Run, form: TermsForm) -> Iterator[Field]:
    """A field for each hyper-parameter that a model of the run has; what all have is filled in."""
    known: dict[str, dict[str, JsonValue]] = {}
    for model in run.models.values():
        for name, value in model.hyperparams.items():
            known.setdefault(name, {})[text_of(value)] = value
    for number, name in enumerate(known | dict.fromkeys(form.values)):
        tried = known.get(name, {})
        text = form.values.get(name, next(iter(tried)) if len(tried) == 1 else "")
        yield Field(
            key=f"value-{number}", name=name, text=text, was="", hint=_tried(tried) if len(tried) > 1 else ""
        )


def _tried(values: Mapping[str, JsonValue]) -> str:
    """What other models have: all of it if that is little, else from where to where, or some."""
    if len(values) <= _NAMED:
        return ", ".join(values)
    numbers = [each for each in values.values() if isinstance(each, int | float)]
    if len(numbers) == len(values):
        return f"{min(numbers):.6g} to {max(numbers):.6g}"
    return f"{', '.join(list(values)[:_NAMED])}, \N{HORIZONTAL ELLIPSIS}"


def _epochs(run: Run, models: Sequence[Model], form: TermsForm) -> Field | None:
    if form.kind in (CommandKind.CHANGE_MODEL, CommandKind.PRIORITIZE):
        return None
    have = {model.epochs for model in models} or {run.fit_request.epochs}
    was = str(have.pop()) if len(have) == 1 else ""
    return Field(key="epochs", name="epochs", text=form.epochs or was, was=was)


def _priority(models: Sequence[Model], form: TermsForm) -> Field | None:
    if form.kind is not CommandKind.PRIORITIZE:
        return None
    have = {model.priority for model in models}
    was = shown(have.pop()) if len(have) == 1 else ""
    return Field(key="priority", name="priority", text=form.priority or was, was=was)


def _starts(run: Run, model: Model, chosen: str) -> Iterator[Start]:
    """What a clone can begin with as things are; and what was chosen, lest another choice takes its place unseen."""
    offered = list(_offered(run, model))
    yield from offered
    if chosen not in {each.value for each in offered}:
        known = {"last": "its last state (warm)", "best": "its best epoch (warm)"}
        yield Start(value=chosen, label=known.get(chosen, f"the end of epoch {chosen} (warm)"))


def _no_start(run: Run, model: Model) -> str:
    return gone_text(run, model) if model.is_pruned else f"{model.id} has no checkpoint yet"


def _offered(run: Run, model: Model) -> Iterator[Start]:
    yield Start(value=COLD, label="new weights (cold)")
    kept, every = run.kept_checkpoints(model), range(model.completed_epochs, 0, -1)
    ends = [epoch for epoch in every if model.visits[model.visits_until(epoch) - 1].file in kept]
    told = set()
    for at in ("last", "best", *ends):
        origin = Origin.model_validate({"model": model.id, "at": at})
        new = NewModel(hyperparams=model.hyperparams, epochs=model.epochs, origin=origin)
        if additions.origin_refusal(run, new):
            continue
        sub_epochs = additions.sub_epochs_at(run, model, origin)
        if at not in ("last", "best") and sub_epochs in told:
            continue
        told.add(sub_epochs)
        begun = model.partitions_until(sub_epochs)
        epochs, rest = divmod(begun, len(model.partitions))
        far = f"epoch {epochs}" + (
            f" and {rest} of {len(model.partitions)} partitions of the next" if rest else ""
        )
        label = {"last": f"its last state (warm): {far}", "best": f"its best epoch (warm): {far}"}
        yield Start(value=str(at), label=label.get(str(at), f"the end of {far} (warm)"))


# --- what it comes to ----------------------------------------------------------------------------


def _judged(
    state: ExperimentState, run: Run, form: TermsForm, values: Sequence[Field]
) -> tuple[Command, dict[str, str], str]:
    """The command, mistakes by field, and the reason why the state refuses the command."""
    problems: dict[str, str] = {}
    command = form.command({field.name: field.text for field in values})
    keys = {field.name: field.key for field in values}
    for problem in problems_of(command, state):
        told = _sentence(str(problem.error).removeprefix(f"it is not possible to {DOES[form.kind]}: "), keys)
        if not problem.part:
            return command, {}, told
        problems.setdefault(_key(problem, keys), told)
    return command, problems, ""


def _key(problem: Problem, keys: dict[str, str]) -> str:
    if problem.name:
        return keys.get(problem.name, "form")
    return {"at": "start", "epochs": "epochs", "priority": "priority"}.get(problem.part, "form")


def _lines(run: Run, models: Sequence[Model], command: Command, wrong: Collection[str]) -> Iterator[Line]:
    """What differs, but for fields that are `wrong`."""
    for configuration in command.configurations:
        for name, value in configuration.items():
            if name not in wrong:
                yield Line(model="", name=name, before="", after=text_of(value))
        if "epochs" not in wrong:
            yield Line(
                model="", name="epochs", before="", after=text_of(command.epochs or run.fit_request.epochs)
            )
    for model in models:
        for name, value in command.hyperparams.items():
            had = model.hyperparams.get(name)
            if name in model.hyperparams and name not in wrong and not is_same({name: had}, {name: value}):
                yield Line(model=model.id, name=name, before=text_of(had), after=text_of(value))
        if command.epochs is not None and command.epochs != model.epochs and "epochs" not in wrong:
            yield Line(model=model.id, name="epochs", before=str(model.epochs), after=text_of(command.epochs))
        if command.priority and "priority" not in wrong:
            before, after = shown(model.priority), shown(parse(command.priority))
            if before != after:
                yield Line(model=model.id, name="priority", before=before, after=after)
        if command.kind is CommandKind.CLONE_MODEL and "start" not in wrong:
            at = {"last": "its last state", "best": "its best epoch"}.get(
                str(command.at), f"epoch {command.at}"
            )
            after = f"the weights of {model.id}: {at}" if command.warm else "new weights"
            yield Line(model=model.id, name="begins with", before="", after=after)


def _seen(form: TermsForm, run: Run, models: Sequence[Model], lines: Sequence[Line]) -> str:
    copied = (
        [(model.hyperparams, model.epochs, model.priority) for model in models]
        if form.kind is CommandKind.CLONE_MODEL
        else []
    )
    return hashlib.blake2b(
        repr((form.kind, run.id, form.models, lines, copied)).encode(), digest_size=8
    ).hexdigest()


def _sentence(text: str, names: Collection[str] = ()) -> str:
    """With a capital letter, unless a name begins it, and a full stop."""
    first = text.partition(" ")[0]
    is_word = first.isalpha() and first not in names and first not in ("epochs", "at")
    begun = text[:1].upper() + text[1:] if is_word else text
    return begun if begun.endswith((".", "!", "?")) else f"{begun}."
