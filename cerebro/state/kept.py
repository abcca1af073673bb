"""What the fold of a run has left to its log, and what it keeps: see `cerebro.state.past`."""

from __future__ import annotations

from typing import NamedTuple

from cerebro.state.models import Model
from cerebro.state.runs import Run
from cerebro.state.visits import Visit


class EpochTotals(NamedTuple):
    """Of a model's own units of an epoch, added up."""

    seconds: float
    compute_s: float
    rows: int


def archived_until(run: Run) -> float:
    """When the last unit ended whose visit the fold does not keep, seconds; 0: it keeps all."""
    return float(getattr(run, "archived_until", 0.0))


def kept_visits(model: Model) -> list[Visit]:
    """A model's own visits from the oldest epoch on that the fold keeps whole, in order."""
    known: list[Visit] | None = getattr(model, "kept_visits", None)
    return list(model.visits[model.inherited :]) if known is None else known


def archived(model: Model) -> int:
    """How many of a model's oldest visits the fold does not keep, but for the last of each epoch."""
    return int(getattr(model.visits, "archived", 0))


def archived_epochs(model: Model) -> int:
    """How many of a model's oldest epochs these are."""
    return int(getattr(model, "archived_epochs", 0))


def epoch_totals(model: Model, epoch: int) -> EpochTotals:
    """Of an epoch that is complete."""
    known = getattr(model, "epoch_totals", None)
    if known is not None:
        return EpochTotals(*known(epoch))
    visits = model.epoch_visits(epoch)
    return EpochTotals(
        sum(visit.seconds for visit in visits),
        sum(visit.compute_s for visit in visits),
        sum(visit.rows for visit in visits),
    )
