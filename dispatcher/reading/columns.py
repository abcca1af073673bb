"""The columns of a table of models: what they are called, what a row has in them, how two values compare.

Every hyper-parameter is a column ``hp.NAME`` and every metric a column ``metric.NAME``, beside the fixed ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Literal

from cerebro.errors import BadRequestError
from cerebro.figures.models import ModelSummary

Cell = str | int | float | bool | None
"""What stands in a table: `None` where a row has nothing there."""

Kind = Literal["text", "number", "count", "share", "time", "duration"]
"""How it is written: as it is; six digits; a whole number; per cent; a point in time; a span of time (seconds)."""

HYPERPARAMETER, METRIC = "hp.", "metric."
_SHOWN_NAMES = 12


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column. `name` is what filters, orders and addresses say."""

    name: str
    label: str
    kind: Kind
    value: Callable[[ModelSummary], Any] = field(repr=False, compare=False)

    def cell(self, row: ModelSummary) -> Cell:
        """What a row has in this column, as a table shows it."""
        value = self.value(row)
        return value if isinstance(value, Cell) else json.dumps(value, ensure_ascii=False)


def _fixed(name: str, label: str, kind: Kind, value: Callable[[ModelSummary], Any]) -> Column:
    return Column(name=name, label=label, kind=kind, value=value)


FIXED: dict[str, Column] = {
    column.name: column
    for column in (
        _fixed("id", "Model", "text", lambda row: row.id),
        _fixed("state", "State", "text", lambda row: row.state),
        _fixed("epoch", "Epoch", "count", lambda row: row.epoch),
        _fixed("epochs", "Epochs", "count", lambda row: row.epochs),
        _fixed("units_done", "Units done", "count", lambda row: row.units_done),
        _fixed("units", "Units", "count", lambda row: row.units),
        _fixed("progress", "Progress", "share", lambda row: row.units_done / row.units if row.units else 0.0),
        _fixed("latest", "Latest", "number", lambda row: row.latest),
        _fixed("latest_epoch", "Latest at epoch", "count", lambda row: row.latest_epoch),
        _fixed("best", "Best", "number", lambda row: row.best),
        _fixed("best_epoch", "Best at epoch", "count", lambda row: row.best_epoch),
        _fixed("worker", "On worker", "text", lambda row: row.worker or None),
        _fixed("redone", "Redone", "count", lambda row: row.redone),
        _fixed("compute_s", "Compute", "duration", lambda row: row.compute_s),
        _fixed("started", "Started", "time", lambda row: row.started or None),
        _fixed("ended", "Newest unit", "time", lambda row: row.ended or None),
        _fixed("failure", "Failure", "text", lambda row: row.failure.message if row.failure else None),
    )
}


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns that a table of models has."""

    hyperparameters: tuple[str, ...]
    metrics: tuple[str, ...]

    def all(self) -> tuple[Column, ...]:
        """Fixed ones, hyper-parameters, metrics."""
        own = [hyperparameter(name) for name in self.hyperparameters]
        return (*FIXED.values(), *own, *(metric(name) for name in self.metrics))

    def find(self, name: str) -> Column:
        """The column of that name; a hyper-parameter or metric may be named without its prefix.

        Raises:
            BadRequestError: there is none; names those there are.
        """
        if name in FIXED:
            return FIXED[name]
        for prefix, names, make in (
            (HYPERPARAMETER, self.hyperparameters, hyperparameter),
            (METRIC, self.metrics, metric),
        ):
            if name.startswith(prefix) and name.removeprefix(prefix) in names:
                return make(name.removeprefix(prefix))
            if name in names:
                return make(name)
        raise BadRequestError(
            f"there is no column {name!r}: there are {', '.join(FIXED)}; "
            f"hyper-parameters: {_told(self.hyperparameters)}; metrics: {_told(self.metrics)}"
        )


def hyperparameter(name: str) -> Column:
    """The column of a hyper-parameter."""
    return Column(
        name=f"{HYPERPARAMETER}{name}",
        label=name,
        kind="number",
        value=lambda row: row.hyperparams.get(name),
    )


def metric(name: str) -> Column:
    """The column of a metric, at a model's best epoch."""
    return Column(name=f"{METRIC}{name}", label=name, kind="number", value=lambda row: row.metrics.get(name))


def text(value: Any) -> str:
    """A value as it is searched and compared as text."""
    return value if isinstance(value, str) else json.dumps(value)


def number(value: Any) -> float | None:
    """A value as a number; `None` if it is none. Truth values are none."""
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # a whole number that no float can hold
        return math.inf if value > 0 else -math.inf


def order(value: Any) -> tuple[int, float, str]:
    """A key to sort by: numbers, then texts, then NaN."""
    found = number(value)
    if found is None:
        return 1, 0.0, text(value).casefold()
    return (2, 0.0, "") if math.isnan(found) else (0, found, "")


def _told(names: Collection[str]) -> str:
    shown = list(names)[:_SHOWN_NAMES]
    return ", ".join(shown) + (", ..." if len(names) > len(shown) else "") if shown else "none"
