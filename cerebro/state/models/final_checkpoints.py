"""Checkpoints of finished models that must exist, although nothing reads them before a user does. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cerebro.state.experiment import ExperimentState
from cerebro.state.models.model import ModelState


class FinalFile(NamedTuple):
    """Last or best checkpoint of a finished model.

    Attributes:
        name: path on the checkpoint volume.
    """

    run: str
    model: str
    name: str


def final_files(state: ExperimentState) -> Iterator[FinalFile]:
    """Yield the checkpoints of all fits, newest fit first; without removed ones, and none during deletion."""
    if state.deletion is not None:
        return
    for run in reversed(state.runs.values()):
        if run.kind != "fit":
            continue
        for model in run.models.values():
            if model.state is not ModelState.FINISHED or not model.sub_epochs:
                continue
            epoch = run.best_epoch(model)
            best = model.epoch_checkpoint(epoch) if epoch else None
            names = dict.fromkeys((model.sub_epochs[-1].checkpoint.name, *([best.name] if best else [])))
            yield from (
                FinalFile(run.id, model.id, name) for name in names if name not in model.checkpoints.removed
            )


def lost_text(experiment: str, lost: FinalFile) -> str:
    """Describe how to replace a lost checkpoint."""
    return (
        f"put {lost.name} back on the checkpoint volume from a backup, or train a new model: "
        f"`cerebro clone {experiment} {lost.model} --run {lost.run}`"
    )
