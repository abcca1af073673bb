"""Changes of a model's hyperparameters during its training. Pure; `models.view` calls it.

Reads the versions of the model's training config in the state. Values that take effect at the next sub-epoch are
included.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cerebro.state import Model
from cerebro.state.models.configs import is_same


@dataclass(frozen=True, kw_only=True)
class ChangeRow:
    """A hyperparameter that changed from `old_value` to `new_value`. `since`: first sub-epoch with the new value, in
    words.
    """

    name: str
    old_value: Any
    new_value: Any
    since: str


def changes(model: Model) -> tuple[ChangeRow, ...]:
    """Return changes, newest first.

    A warm clone's values that differ from its parent's are changes at its first sub-epoch.
    """
    return () if len(model.configs.versions) == 1 else tuple(reversed(list(_changes(model))))


def _changes(model: Model) -> Iterator[ChangeRow]:
    previous = 0  # index into `Model.config`
    for config, since in _config_starts(model):
        old, new = model.configs.versions[previous].hyperparams, model.configs.versions[config].hyperparams
        for name in new:
            if not is_same({name: old.get(name)}, {name: new[name]}):
                yield ChangeRow(name=name, old_value=old.get(name), new_value=new[name], since=since)
        previous = config


def _config_starts(model: Model) -> Iterator[tuple[int, str]]:
    """Yield (index of the training config, first sub-epoch in words)."""
    for sub_epoch, config in model.configs.begun:
        yield config, _sub_epoch_text(model, sub_epoch)
    if model.busy:
        yield model.configs.active, f"{_sub_epoch_text(model, len(model.sub_epochs))}, the current one"
    yield len(model.configs.versions) - 1, "the next sub-epoch"


def _sub_epoch_text(model: Model, sub_epoch: int) -> str:
    epoch = model.progress.epochs_before(sub_epoch) + 1
    return f"epoch {epoch}, sub-epoch {sub_epoch - model.sub_epochs_until(epoch - 1) + 1}"
