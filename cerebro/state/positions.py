"""Where a unit is in its model's training: what a learning-rate schedule asks for.

Partitions have different numbers of rows, and so of batches, and models visit them in different orders. So the number
of batches before a unit follows from the visits before it. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from cerebro.contract.tasks import Position
from cerebro.state.models import Model


def position_of(model: Model, rows: Mapping[int, int], unit: int) -> Position:
    """Of the unit of that number, from 0, all visits before which are known.

    Args:
        rows: partition -> its rows; see `FitPlan.partitions`.
    """
    size = model.hyperparams["batch_size"]
    assert isinstance(size, int)
    batches = {partition: -(-rows[partition] // size) for partition in model.partitions}
    before = model.epochs_before(unit)
    visited = [p for v in model.visits[model.visits_until(before) : unit] for p in v.partitions]
    per_epoch = sum(batches.values())
    return Position(
        epochs=model.epochs,
        units=model.epochs * len(model.partitions),
        step=before * per_epoch + sum(batches[partition] for partition in visited),
        total_steps=model.epochs * per_epoch,
    )
