"""What a command about the terms of models brings about, in sentences. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from cerebro.commands.command import Command
from cerebro.commands.rules import CommandKind
from cerebro.contract.priority import NORMAL, shown
from cerebro.contract.records import Hyperparameters
from cerebro.contract.runs import Origin
from cerebro.state import Model, Run, additions, wording
from cerebro.state.models import is_same

_RATES = frozenset({"lr", "learning_rate", "weight_decay", "momentum"})
"""Names under which an optimizer keeps values of its own."""


def notes(run: Run, models: Sequence[Model], command: Command) -> Iterator[str]:
    """Of a command that is possible. `models`: those that it names."""
    match command.kind:
        case CommandKind.ADD_MODELS:
            yield from _of_added(run, command)
        case CommandKind.CLONE_MODEL:
            yield from _of_clone(run, models[0], command)
        case CommandKind.CHANGE_MODEL:
            yield "The new values hold from the next sub-epoch that starts. One that runs ends with the old values."
        case CommandKind.EXTEND_MODEL:
            yield from (
                _of_extended(model, command.epochs)
                for model in models
                if command.epochs is not None and command.epochs != model.epochs
            )
        case CommandKind.PRIORITIZE:
            yield "Sub-epochs of models with a higher priority go first. Running sub-epochs are not interrupted."
    is_warm_or_changed = command.warm or command.kind is CommandKind.CHANGE_MODEL
    if is_warm_or_changed and _RATES & command.hyperparams.keys():
        yield "Values of an optimizer take effect in one that is given to checkpoint.track."
    reopens = command.kind in (CommandKind.ADD_MODELS, CommandKind.CLONE_MODEL, CommandKind.EXTEND_MODEL)
    if reopens and not run.is_open:
        yield f"{run.id} is {wording.run(run)}: it is open again for this alone."


def _of_added(run: Run, command: Command) -> Iterator[str]:
    (configuration,) = command.configurations
    yield _anew(run, command.epochs or run.fit_request.epochs)
    every = (
        set.intersection(*(set(model.hyperparams) for model in run.models.values())) if run.models else set()
    )
    for name in sorted(every - configuration.keys()):
        yield f"{name} is left out, and every other model has it: is that meant?"
    yield from _twin(run, dict(configuration))
    yield from _in_search(run, is_warm=False)


def _of_clone(run: Run, model: Model, command: Command) -> Iterator[str]:
    epochs = command.epochs or model.epochs
    if not command.warm:
        yield _anew(run, epochs)
        if not command.hyperparams:
            yield f"All values are those of {model.id}."
    else:
        sub_epochs = additions.sub_epochs_at(
            run, model, Origin.model_validate({"model": model.id, "at": command.at})
        )
        begun = model.partitions_until(sub_epochs)
        done, parts = begun / len(model.partitions), len(model.partitions)
        part = f" and {begun % parts} of {parts} partitions of the next" if begun % parts else ""
        left = epochs - math.floor(done)
        yield (
            f"It goes on from {model.id} at epoch {math.floor(done)}{part}, with {left} of {epochs} epochs left. What "
            "shapes the network can only differ in a cold clone."
        )
    if model.priority != NORMAL:
        yield f"Its priority is that of {model.id}: {shown(model.priority)}."
    yield from _in_search(run, is_warm=command.warm)


def _of_extended(model: Model, epochs: int) -> str:
    more = epochs - model.epochs
    how = f"{abs(more)} epoch{'' if abs(more) == 1 else 's'} {'more' if more > 0 else 'fewer'} than before"
    return f"{model.id} is trained for {epochs} epochs in all, {how}; {model.completed_epochs} are complete."


def _anew(run: Run, epochs: int) -> str:
    parts = len(run.fit_rows)
    return f"It begins with new weights: {epochs} epoch{'' if epochs == 1 else 's'}, {epochs * parts:,} sub-epochs."


def _twin(run: Run, hyperparams: Hyperparameters) -> Iterator[str]:
    twins = [model.id for model in run.models.values() if is_same(model.hyperparams, hyperparams)]
    if twins:
        yield f"{twins[0]} has the same hyper-parameters."


def _in_search(run: Run, *, is_warm: bool) -> Iterator[str]:
    asked = run.fit_request.search
    if asked is None or run.search is None or run.search.finish is not None or run.search.is_closed:
        return
    if asked.procedure.kind == "pbt":
        yield "It is trained beside the population, which takes no note of it."
    elif is_warm:
        yield "It takes part in no rung of the search, because it begins with weights that others have not."
    elif asked.procedure.kind in ("asha", "hyperband"):
        yield "It takes part in the rungs of the search, which may stop it there."
