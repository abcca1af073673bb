"""Curve values from a commit, for TensorBoard files and exports.

A repeated sub-epoch (after a lost checkpoint) has the same task key: consumers must skip a second value for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cerebro.contract.events import EpochCompleted, TaskCommitted
from cerebro.state.models.model import Model
from cerebro.state.reports.schedule_report import gap
from cerebro.state.tasks.keys import TaskKey


class Values(NamedTuple):
    """Scalars of one step, by name without the tag's prefix.

    Attributes:
        prefix: ``sub_epoch/train``, ``epoch/train``, ``epoch/valid`` or ``schedule``.
        step: number of the sub-epoch or epoch, from 1.
        values: by name.
    """

    prefix: str
    step: int
    values: Mapping[str, float]


def values_of_commit(event: TaskCommitted, key: TaskKey, model: Model) -> tuple[Values, ...]:
    """Return the values of a committed sub-epoch or validation, and of the epoch it completes.

    Args:
        key: of its task.
        model: state after the commit.
    """
    assert key.epoch is not None, "training and validation are of an epoch"
    metrics = event.result.metrics
    if key.kind == "valid":
        return (Values("epoch/valid", key.epoch, metrics),)
    of_sub_epoch = Values("sub_epoch/train", len(model.visits), metrics)
    if model.visited % len(model.partitions):
        return (of_sub_epoch,)
    return (of_sub_epoch, Values("epoch/train", key.epoch, model.training_metrics(key.epoch)))


def values_of_epoch(event: EpochCompleted) -> Values:
    """Return the schedule metrics of a run at the end of an epoch."""
    values = {
        "makespan_s": event.makespan_s,
        "lower_bound_s": event.lower_bound_s,
        "gap": gap(event.makespan_s, event.lower_bound_s),
        "idle_s": sum(event.idle_s.values()),
    }
    return Values("schedule", event.epoch, values)
