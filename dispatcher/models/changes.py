"""Which values of a model were changed, and since when it is trained with them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cerebro.state import Model
from cerebro.state.models import is_same


@dataclass(frozen=True, kw_only=True)
class ChangeRow:
    """A hyper-parameter that has the value `after` in the place of `before`; `since`: from which sub-epoch on, in
    words."""

    name: str
    before: Any
    after: Any
    since: str


def changes(model: Model) -> tuple[ChangeRow, ...]:
    """Newest first. A value that a warm clone has in the place of its parent's is one, too, at its own first
    sub-epoch."""
    return () if len(model.terms) == 1 else tuple(reversed(list(_changes(model))))


def _changes(model: Model) -> Iterator[ChangeRow]:
    known = 0  # of `Model.terms`
    for terms, since in _spans(model):
        had, has = model.terms[known].hyperparams, model.terms[terms].hyperparams
        for name in has:
            if not is_same({name: had.get(name)}, {name: has[name]}):
                yield ChangeRow(name=name, before=had.get(name), after=has[name], since=since)
        known = terms


def _spans(model: Model) -> Iterator[tuple[int, str]]:
    """Which of its terms it is trained with, and since when."""
    for sub_epoch, terms in model.begun:
        yield terms, _sub_epoch(model, sub_epoch)
    if model.busy:
        yield model.given, f"{_sub_epoch(model, len(model.visits))}, its present one"
    yield len(model.terms) - 1, "its next sub-epoch"


def _sub_epoch(model: Model, sub_epoch: int) -> str:
    epoch = model.epochs_before(sub_epoch) + 1
    return f"epoch {epoch}, sub-epoch {sub_epoch - model.visits_until(epoch - 1) + 1}"
