"""The values that a committed event adds to the curves of a model or of a run: the one rule for whoever shows them
elsewhere, as TensorBoard's files and exports do.

A sub-epoch that is done again, because its checkpoint was lost, has the task that it had: whoever keeps what was added
leaves out what comes under the same task for a second time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cerebro.contract.events import EpochCompleted, TaskCommitted
from cerebro.state.keys import TaskKey
from cerebro.state.models import Model
from cerebro.state.report import gap


class Values(NamedTuple):
    """Scalars of one step, by their names behind the prefix of their tag.

    Attributes:
        prefix: ``sub_epoch/train``, ``epoch/train``, ``epoch/valid`` or ``schedule``.
        step: number of the sub-epoch, or of the epoch, from 1.
        values: by name.
    """

    prefix: str
    step: int
    values: Mapping[str, float]


def values_of_commit(event: TaskCommitted, key: TaskKey, model: Model) -> tuple[Values, ...]:
    """Of a sub-epoch or a validation that was just committed: those of the sub-epoch, and of the epoch that ends with
    it.

    Args:
        key: of its task.
        model: after the commit.
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
    """How well the sub-epochs of a run were scheduled until an epoch was complete."""
    values = {
        "makespan_s": event.makespan_s,
        "lower_bound_s": event.lower_bound_s,
        "gap": gap(event.makespan_s, event.lower_bound_s),
        "idle_s": sum(event.idle_s.values()),
    }
    return Values("schedule", event.epoch, values)
