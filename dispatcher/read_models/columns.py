"""Columns of a table of models: name, label, kind and value. Pure.

In addition to the fixed columns, each hyperparameter is a column ``hp.NAME`` and each metric a column
``metric.NAME``. `ModelTable` knows these names; `dispatcher.models` selects, filters and sorts by columns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cerebro.contract.tags import tags_text
from cerebro.errors import BadRequestError
from cerebro.figures.models import ModelSummary
from dispatcher.pages.tables import Cell

Kind = Literal["text", "number", "count", "share", "time", "duration"]
"""Format of a column: text; six digits; integer; per cent; point in time; seconds."""

HYPERPARAMETER, METRIC = "hp.", "metric."
_SHOWN_NAMES = 12


@dataclass(frozen=True)
class Column:
    """One column. `name` identifies it in filters, orders and addresses."""

    name: str
    label: str
    kind: Kind
    value: Callable[[ModelSummary], Any] = field(repr=False, compare=False)

    def cell(self, row: ModelSummary) -> Cell:
        """Return a row's value in this column for a table."""
        value = self.value(row)
        return value if isinstance(value, Cell) else json.dumps(value, ensure_ascii=False)


FIXED: dict[str, Column] = {
    column.name: column
    for column in (
        Column("id", "Model", "text", lambda row: row.id),
        Column("state", "State", "text", lambda row: row.state),
        Column("epoch", "Epoch", "count", lambda row: row.progress.epoch),
        Column("epochs", "Epochs", "count", lambda row: row.progress.epochs),
        Column("sub_epochs_done", "Sub-epochs done", "count", lambda row: row.progress.done),
        Column("sub_epochs", "Sub-epochs", "count", lambda row: row.progress.total),
        Column(
            "progress",
            "Progress",
            "share",
            lambda row: row.progress.done / row.progress.total if row.progress.total else 0.0,
        ),
        Column("latest", "Latest", "number", lambda row: row.latest),
        Column("latest_epoch", "Latest at epoch", "count", lambda row: row.latest_epoch),
        Column("best", "Best", "number", lambda row: row.best),
        Column("best_epoch", "Best at epoch", "count", lambda row: row.best_epoch),
        Column("lineage", "Parent", "text", lambda row: str(row.parent) if row.parent else None),
        Column("parent", "Parent model", "text", lambda row: row.parent.id if row.parent else None),
        Column("branch", "Parent epoch", "count", lambda row: row.parent.epoch if row.parent else None),
        Column("worker", "Worker", "text", lambda row: row.worker or None),
        Column("redone", "Restarted", "count", lambda row: row.effort.redone),
        Column("compute_s", "Compute", "duration", lambda row: row.effort.compute_s),
        Column("started", "Started", "time", lambda row: row.effort.started or None),
        Column("ended", "Newest sub-epoch", "time", lambda row: row.effort.ended or None),
        Column("tags", "Tags", "text", lambda row: tags_text(row.tags, has_note=True) or None),
        Column("failure", "Failure", "text", lambda row: row.failure.message if row.failure else None),
    )
}


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Columns of a table of models.

    Attributes:
        tests: model -> objective of its newest test; the column ``test`` exists if there is any.
    """

    hyperparameters: tuple[str, ...]
    metrics: tuple[str, ...]
    tests: Mapping[str, float] = field(default_factory=dict)

    def all(self) -> tuple[Column, ...]:
        """Return fixed columns, the column of tests, hyperparameters, metrics."""
        hyperparameters = [hyperparameter(name) for name in self.hyperparameters]
        tests = (self.test(),) if self.tests else ()
        return (*FIXED.values(), *tests, *hyperparameters, *(metric(name) for name in self.metrics))

    def test(self) -> Column:
        """Return the column of test values."""
        return Column("test", "Test", "number", lambda row: self.tests.get(row.id))

    def find(self, name: str) -> Column:
        """Return a column by name. The prefix of a hyperparameter or metric is optional.

        Raises:
            BadRequestError: the column does not exist; the message lists the existing ones.
        """
        if name in FIXED:
            return FIXED[name]
        if name == "test" and self.tests:
            return self.test()
        for prefix, names, make in (
            (HYPERPARAMETER, self.hyperparameters, hyperparameter),
            (METRIC, self.metrics, metric),
        ):
            if name.startswith(prefix) and name.removeprefix(prefix) in names:
                return make(name.removeprefix(prefix))
            if name in names:
                return make(name)
        raise BadRequestError(
            f"the column {name!r} does not exist. Columns: {', '.join(FIXED)}; "
            f"hyperparameters: {_name_list(self.hyperparameters)}; metrics: {_name_list(self.metrics)}"
        )


def hyperparameter(name: str) -> Column:
    """Return the column of a hyperparameter."""
    return Column(f"{HYPERPARAMETER}{name}", name, "number", lambda row: row.hyperparams.get(name))


def metric(name: str) -> Column:
    """Return the column of a metric at a model's best epoch."""
    return Column(f"{METRIC}{name}", name, "number", lambda row: row.metrics.get(name))


def _name_list(names: Collection[str]) -> str:
    shown = list(names)[:_SHOWN_NAMES]
    return ", ".join(shown) + (", ..." if len(names) > len(shown) else "") if shown else "none"
