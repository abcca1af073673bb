"""Chosen models side by side: what they have in common and where they differ. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cerebro.figures.models import ModelSummary
from dispatcher.reading.model_table import ModelTable

MOST = 50
"""Models compared at once."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One property of each compared model; `None` where a model does not have it."""

    name: str
    values: tuple[Any, ...]
    differs: bool


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The compared models, and a line for each property: first hyper-parameters, then results."""

    models: tuple[ModelSummary, ...]
    hyperparams: tuple[Line, ...]
    results: tuple[Line, ...]

    @property
    def same(self) -> int:
        """Lines in which all models agree."""
        return sum(not line.differs for line in (*self.hyperparams, *self.results))


def comparison(table: ModelTable, chosen: Sequence[str]) -> Comparison:
    """Compare the models `chosen` by id; unknown ones are left out."""
    models = tuple(row for model in chosen if (row := table.row(model)) is not None)
    names = dict.fromkeys(name for model in models for name in model.hyperparams)
    metrics = dict.fromkeys(name for model in models for name in model.metrics)
    results = (
        _line("state", [model.state for model in models]),
        _line("best", [model.best for model in models]),
        _line("at epoch", [model.best_epoch for model in models]),
        *(_line(name, [model.metrics.get(name) for model in models]) for name in metrics),
        _line("sub-epochs", [f"{model.sub_epochs_done}/{model.sub_epochs}" for model in models]),
        _line("compute, s", [round(model.compute_s, 1) for model in models]),
        _line("redone", [model.redone for model in models]),
    )
    return Comparison(
        models=models,
        hyperparams=tuple(_line(name, [model.hyperparams.get(name) for model in models]) for name in names),
        results=results,
    )


def _line(name: str, values: Sequence[Any]) -> Line:
    texts = {repr(value) for value in values}
    return Line(name=name, values=tuple(values), differs=len(texts) > 1)
