"""Comparison of up to 50 models, property by property. Pure; the tab Models and `dispatcher.compare` call it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cerebro.figures.models import ModelSummary

MAX_MODELS = 50
"""Maximum number of compared models."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One property of each model; `None` for a model without it."""

    name: str
    values: tuple[Any, ...]
    differs: bool


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The compared models, and one line per property: hyperparameters and results."""

    models: tuple[ModelSummary, ...]
    hyperparams: tuple[Line, ...]
    results: tuple[Line, ...]

    @property
    def equal_lines(self) -> int:
        """Number of lines with equal values."""
        return sum(not line.differs for line in (*self.hyperparams, *self.results))


def comparison(models: Sequence[ModelSummary]) -> Comparison:
    """Compare models of one or several runs."""
    names = dict.fromkeys(name for model in models for name in model.hyperparams)
    metrics = dict.fromkeys(name for model in models for name in model.metrics)
    results = (
        _line("state", [model.state for model in models]),
        _line("best", [model.best for model in models]),
        _line("best epoch", [model.best_epoch for model in models]),
        *(_line(name, [model.metrics.get(name) for model in models]) for name in metrics),
        _line("sub-epochs", [f"{model.progress.done}/{model.progress.total}" for model in models]),
        _line("compute time, s", [round(model.effort.compute_s, 1) for model in models]),
        _line("restarts", [model.effort.redone for model in models]),
    )
    return Comparison(
        models=tuple(models),
        hyperparams=tuple(_line(name, [model.hyperparams.get(name) for model in models]) for name in names),
        results=results,
    )


def _line(name: str, values: Sequence[Any]) -> Line:
    texts = {repr(value) for value in values}
    return Line(name=name, values=tuple(values), differs=len(texts) > 1)
