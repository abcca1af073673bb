"""Position of a sub-epoch in its model's training, for learning-rate schedules. Pure.

Partitions differ in rows and batches, and models train on them in different orders. So the number of batches before a
sub-epoch depends on the earlier sub-epochs and their batch sizes.

For sub-epochs on sets of partitions, `total_steps` counts single partitions; it exceeds the true number by at most one
batch for each partition of a set but one.
"""

from __future__ import annotations

from collections.abc import Mapping

from cerebro.contract.records import Hyperparameters, batches_of, drops_last
from cerebro.contract.tasks.bodies import Position
from cerebro.state.models.completed_sub_epoch import CompletedSubEpoch
from cerebro.state.models.configs import TrainingConfig
from cerebro.state.models.model import Model


def position_of(
    model: Model, rows: Mapping[int, int], sub_epoch: int, config: TrainingConfig | None = None
) -> Position:
    """Return the position of a sub-epoch, numbered from 0; all earlier sub-epochs must be known.

    Args:
        rows: partition -> rows; see `FitPlan.partitions`.
        config: its training config; default `Model.config_of`.
    """
    now = config or model.config_of(sub_epoch)
    cut = _cut(now.hyperparams)
    batches = {partition: _batches(rows[partition], cut) for partition in model.partitions}
    earlier_epochs = model.progress.epochs_before(sub_epoch)
    trained = [
        p for v in model.sub_epochs[model.sub_epochs_until(earlier_epochs) : sub_epoch] for p in v.partitions
    ]
    per_epoch = sum(batches.values())
    expected = step = earlier_epochs * per_epoch + sum(batches[partition] for partition in trained)
    # Only earlier sub-epochs count: later ones must not move the position.
    starts = [0, *(number for first, number in model.configs.begun if first < sub_epoch)] if sub_epoch else []
    cuts = {cut, *(_cut(model.configs.versions[number].hyperparams) for number in starts)}
    if len(model.sub_epochs) != model.progress.trained or len(cuts) > 1:
        # Partitions read together share one last batch.
        compacted = min(earlier_epochs, model.compacted_epochs)
        first = model.sub_epochs_until(compacted)
        known = model.summaries if compacted == len(model.summaries) else model.summaries.until(compacted)
        step = known.steps + sum(
            steps_of(model, number, completed, rows)
            for number, completed in enumerate(model.sub_epochs[first:sub_epoch], start=first)
        )
    # Remaining batches have the current size.
    past = step if len(cuts) > 1 else expected
    return Position(
        epochs=now.epochs,
        sub_epochs=now.epochs * len(model.partitions),
        step=step,
        total_steps=past + now.epochs * per_epoch - expected,
    )


def steps_of(model: Model, sub_epoch: int, completed: CompletedSubEpoch, rows: Mapping[int, int]) -> int:
    """Return the optimizer steps of a sub-epoch, given its number."""
    return _batches(
        sum(rows[partition] for partition in completed.partitions), _cut(model.hyperparams_of(sub_epoch))
    )


def _cut(hyperparams: Hyperparameters) -> tuple[int, bool]:
    """Return the batch size, and True if training drops a smaller last batch."""
    size = hyperparams["batch_size"]
    assert isinstance(size, int)
    return size, drops_last(hyperparams)


def _batches(rows: int, cut: tuple[int, bool]) -> int:
    size, drop_last = cut
    return batches_of(rows, size, drop_last=drop_last)
