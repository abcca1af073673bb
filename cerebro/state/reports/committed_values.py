"""Curve values from events, for TensorBoard files and exports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cerebro.contract.events import EpochCompleted, Event, TaskCommitted
from cerebro.state.experiment import ExperimentState
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


class Committed(NamedTuple):
    """Curve values that one event adds to a run or model.

    Attributes:
        run: run id.
        model: model id; empty for values of the run.
        key: unique key in the experiment. A repeated validation or epoch has the same key.
        values: in order.
        is_sub_epoch: True for sub-epochs: they are too many to remember for detecting duplicates.
    """

    run: str
    model: str
    key: str
    values: tuple[Values, ...]
    is_sub_epoch: bool = False


def committed_values(state: ExperimentState, event: Event) -> Committed | None:
    """Return the values of an event that `state` has just applied, or `None`.

    A sub-epoch that is repeated after the loss of its checkpoint has none: its first commit counts.
    """
    if isinstance(event, EpochCompleted):
        key_of_epoch = f"{event.run}/epochs/e{event.epoch}"
        return Committed(event.run, "", key_of_epoch, (_values_of_epoch(event),))
    if not isinstance(event, TaskCommitted):
        return None
    key = TaskKey.parse(event.task)
    if key.kind not in ("train", "valid") or key.model is None:
        return None
    model = state.runs[key.run].models[key.model]
    is_sub_epoch = key.kind == "train"
    if is_sub_epoch and (key.epoch, key.partitions) in model.checkpoints.undone:
        return None
    name = str(key._replace(partition=None)) if key.kind == "valid" else event.task
    values = _values_of_commit(event, key, model)
    return Committed(key.run, key.model, name, values, is_sub_epoch) if values else None


def _values_of_commit(event: TaskCommitted, key: TaskKey, model: Model) -> tuple[Values, ...]:
    assert key.epoch is not None, "training and validation are of an epoch"
    metrics = event.result.metrics
    if key.kind == "valid":
        if key.partition is not None:  # of a fold: the last partition's commit completes the epoch
            metrics = model.validation.metrics.get(key.epoch, {})
        return (Values("epoch/valid", key.epoch, metrics),) if metrics or key.partition is None else ()
    of_sub_epoch = Values("sub_epoch/train", len(model.sub_epochs), metrics)
    if model.progress.trained % len(model.partitions):
        return (of_sub_epoch,)
    return (of_sub_epoch, Values("epoch/train", key.epoch, model.training_metrics(key.epoch)))


def _values_of_epoch(event: EpochCompleted) -> Values:
    values = {
        "makespan_s": event.makespan_s,
        "lower_bound_s": event.lower_bound_s,
        "gap": gap(event.makespan_s, event.lower_bound_s),
        "idle_s": sum(event.idle_s.values()),
    }
    return Values("schedule", event.epoch, values)
