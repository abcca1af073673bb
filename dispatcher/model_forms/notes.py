"""Consequences of a model command, in sentences for the form. Pure.

`view.model_form_view` calls `notes` for a valid command only. Refusals and errors of fields are in
`cerebro.commands`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cerebro.commands.command import Command
from cerebro.commands.rules import CommandKind
from cerebro.contract.priority import NORMAL, shown
from cerebro.contract.records import Hyperparameters
from cerebro.contract.runs import ParentCheckpoint
from cerebro.state import Model, Run
from cerebro.state.models import added_models
from cerebro.state.models.configs import is_same
from cerebro.state.reports import state_words

_RATES = frozenset({"lr", "learning_rate", "weight_decay", "momentum"})
"""Names of values that an optimizer stores itself."""


def notes(run: Run, models: Sequence[Model], command: Command) -> Iterator[str]:
    """Yield the consequences of a valid command on `models`."""
    match command.kind:
        case CommandKind.ADD_MODELS:
            yield from _added_notes(run, command)
        case CommandKind.CLONE_MODEL:
            yield from _clone_notes(run, models[0], command)
        case CommandKind.CHANGE_MODEL:
            yield "The new values apply from the next sub-epoch. A running sub-epoch ends with the old values."
        case CommandKind.EXTEND_MODEL:
            yield from (
                _extended_note(model, command.epochs)
                for model in models
                if command.epochs is not None and command.epochs != model.epochs
            )
        case CommandKind.PRIORITIZE:
            yield "Sub-epochs of models with a higher priority start first. Running sub-epochs are not interrupted."
    is_warm_or_changed = command.warm or command.kind is CommandKind.CHANGE_MODEL
    if is_warm_or_changed and _RATES & command.hyperparams.keys():
        yield "Optimizer values take effect only in an optimizer that is passed to checkpoint.track."
    reopens = command.kind in (CommandKind.ADD_MODELS, CommandKind.CLONE_MODEL, CommandKind.EXTEND_MODEL)
    if reopens and not run.is_open:
        yield f"{run.id} is {state_words.run(run)}: it reopens for this change only."


def _added_notes(run: Run, command: Command) -> Iterator[str]:
    (configuration,) = command.configurations
    yield _cold_note(run, command.epochs or run.fit_request.epochs)
    every = (
        set.intersection(*(set(model.hyperparams) for model in run.models.values())) if run.models else set()
    )
    for name in sorted(every - configuration.keys()):
        yield f"{name} is missing, but every other model has it. Add it unless you omitted it on purpose."
    yield from _twin_note(run, dict(configuration))
    yield from _search_note(run, is_warm=False)


def _clone_notes(run: Run, model: Model, command: Command) -> Iterator[str]:
    epochs = command.epochs or model.epochs
    if not command.warm:
        yield _cold_note(run, epochs)
        if not command.hyperparams:
            yield f"All values are equal to {model.id}."
    else:
        sub_epochs = added_models.sub_epochs_at(
            run, model, ParentCheckpoint.model_validate({"model": model.id, "at": command.at})
        )
        remaining = epochs - model.partitions_until(sub_epochs) // len(model.partitions)
        yield (
            f"It continues {model.id} from {position_text(model, sub_epochs)}, with {remaining} of {epochs} epochs "
            "remaining. Only a clone with new weights can change the shape of the network."
        )
    if model.priority != NORMAL:
        yield f"Its priority is {shown(model.priority)}, as for {model.id}."
    yield from _search_note(run, is_warm=command.warm)


def position_text(model: Model, sub_epochs: int) -> str:
    """Describe the position of a model after its first `sub_epochs` sub-epochs."""
    parts = len(model.partitions)
    epoch, rest = divmod(model.partitions_until(sub_epochs), parts)
    return f"epoch {epoch}" + (f" and {rest} of {parts} partitions of the next" if rest else "")


def _extended_note(model: Model, epochs: int) -> str:
    more = epochs - model.epochs
    how = f"{abs(more)} epoch{'' if abs(more) == 1 else 's'} {'more' if more > 0 else 'fewer'} than before"
    return f"{model.id} trains for {epochs} epochs in total, {how}; {model.completed_epochs} are complete."


def _cold_note(run: Run, epochs: int) -> str:
    parts = len(run.fit_rows)
    return f"It starts with new weights: {epochs} epoch{'' if epochs == 1 else 's'}, {epochs * parts:,} sub-epochs."


def _twin_note(run: Run, hyperparams: Hyperparameters) -> Iterator[str]:
    twins = [model.id for model in run.models.values() if is_same(model.hyperparams, hyperparams)]
    if twins:
        yield f"{twins[0]} has the same hyperparameters."


def _search_note(run: Run, *, is_warm: bool) -> Iterator[str]:
    search = run.fit_request.search
    if search is None or run.search is None or run.search.finish is not None or run.search.is_closed:
        return
    if search.procedure.kind == "pbt":
        yield "It trains outside the population of the search."
    elif is_warm:
        yield "It is not part of the search's rungs, because it starts with trained weights."
    elif search.procedure.kind in ("asha", "hyperband"):
        yield "It is part of the search's rungs, so the search may stop it."
