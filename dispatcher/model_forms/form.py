"""Parsing of a model form into a command. Pure: `view` checks the command, `page` sends it.

The form sends each field's original value as ``was.FIELD``. An unchanged field requests nothing, so a value that
another user changed in between is not changed back. Longer input is cut: 50 models, 500 hyperparameters, 4,000
characters each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cerebro.commands.command import Command
from cerebro.commands.rules import CommandKind
from cerebro.commands.values import value_of

KINDS = {
    "add": CommandKind.ADD_MODELS,
    "clone": CommandKind.CLONE_MODEL,
    "change": CommandKind.CHANGE_MODEL,
    "extend": CommandKind.EXTEND_MODEL,
    "prioritize": CommandKind.PRIORITIZE,
}
"""Last part of a form's address (also the subcommand of the CLI) -> command."""

OF_SEVERAL = frozenset({CommandKind.EXTEND_MODEL, CommandKind.PRIORITIZE})
"""Commands that may name several models."""

COLD = "new weights"
"""Start of a clone with new weights. Other starts: ``last``, ``best``, or the number of an epoch."""

_MAX_LENGTH, _MAX_FIELDS = 4_000, 500
_VALUE, _WAS = "hp.", "was."


@dataclass(frozen=True, kw_only=True)
class ModelForm:
    """A sent or prefilled form.

    Attributes:
        run: id of the models' run, by default the newest fit.
        values: changed hyperparameters as text; for a new model, all of them.
        epochs, priority: changed values as text.
        start: `COLD`, ``last``, ``best`` or the number of an epoch.
        difference: `ModelFormView.difference` of the page that sent it.
        once: random id of the opened form, so that a double click counts once.
    """

    kind: CommandKind
    run: str = ""
    models: tuple[str, ...] = ()
    values: Mapping[str, str]
    epochs: str = ""
    priority: str = ""
    start: str = COLD
    difference: str = ""
    once: str = ""

    @classmethod
    def parse(cls, kind: CommandKind, sent: Mapping[str, str], models: Sequence[str] = ()) -> ModelForm:
        """Parse a sent form. All fields are optional. `models`: all values of that field."""
        names = [name for text in models for name in text[:_MAX_LENGTH].split(",") if name]
        found = tuple(dict.fromkeys(name[:60] for name in names))
        return cls(
            kind=kind,
            run=(sent.get("run") or sent.get("fit") or "")[:60],
            models=found[:50]
            if kind in OF_SEVERAL
            else found[:1]
            if kind is not CommandKind.ADD_MODELS
            else (),
            values=_typed(sent, keeps_all=kind is CommandKind.ADD_MODELS),
            epochs=_text(sent, "epochs"),
            priority=_text(sent, "priority"),
            start=sent.get("start", "").strip()[:60] or COLD,
            difference=sent.get("difference", "")[:60],
            once=sent.get("once", "")[:60],
        )

    @property
    def is_touched(self) -> bool:
        """True if the form requests anything."""
        return bool(self.values or self.epochs or self.priority or self.start != COLD)

    def command(self, shown: Mapping[str, str]) -> Command:
        """Return the requested command.

        Args:
            shown: hyperparameters of a new model, as the form shows them.
        """
        is_new = self.kind is CommandKind.ADD_MODELS
        typed = shown if is_new else self.values
        values = {name: value_of(text) for name, text in typed.items() if text or not is_new}
        return Command(
            kind=self.kind,
            run=self.run or None,
            models=self.models,
            configurations=(values,) if is_new else (),
            hyperparams={} if is_new else values,
            epochs=value_of(self.epochs) if self.epochs else None,
            priority=self.priority,
            warm=self.start != COLD,
            at="last" if self.start == COLD else int(self.start) if self.start.isdecimal() else self.start,
        )


def _typed(sent: Mapping[str, str], *, keeps_all: bool) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, text in sent.items():
        name = key.removeprefix(_VALUE)
        is_as_shown = text == sent.get(f"{_WAS}{key}")
        if key.startswith(_VALUE) and name and len(found) < _MAX_FIELDS and (keeps_all or not is_as_shown):
            found[name] = text[:_MAX_LENGTH]
    return found


def _text(sent: Mapping[str, str], name: str) -> str:
    text = sent.get(name, "").strip()[:60]
    return "" if text == sent.get(f"{_WAS}{name}") else text
