"""Effects of deleting an experiment, for its confirmation page. Pure; the controller deletes."""

from __future__ import annotations

from dataclasses import dataclass

from cerebro.commands.rules import CommandKind, allowed
from cerebro.state import ExperimentState
from cerebro.state.reports import state_words
from dispatcher.cluster.volumes import Measured, experiment_bytes


@dataclass(frozen=True, kw_only=True)
class DeletionView:
    """Counts and bytes that a deletion removes. `volumes`: (volume, bytes), or None before the first measurement."""

    is_allowed: bool
    reason: str
    runs: int
    models: int
    checkpoints: int
    checkpoint_bytes: int
    predictions: int
    datasets: tuple[str, ...]
    volumes: tuple[tuple[str, int], ...] | None
    measured: float | None


def deletion(state: ExperimentState, measured: Measured | None) -> DeletionView:
    """Return the effects of deleting an experiment.

    Checkpoints are counted from the log, at most the two newest of each model; `volumes` is measured on disk.
    """
    open_runs, checkpoints = state.open_runs(), {}
    for each in state.runs.values():
        for model in each.models.values():
            for sub_epoch in model.kept_sub_epochs[-2:]:
                if sub_epoch.checkpoint.name in model.checkpoints.removed:
                    continue
                checkpoints[sub_epoch.checkpoint.name] = sub_epoch.checkpoint.size
    reason = ""
    if state.deletion is not None:
        reason = f"{state.deletion.by or 'A user'} has already requested the deletion; the controller is deleting it."
    elif open_runs:
        open_list = ", ".join(f"{run.id} is {state_words.run(run)}" for run in open_runs)
        reason = f"{open_list}: stop {'it' if len(open_runs) == 1 else 'them'} first."
    sizes = experiment_bytes(measured, state.name)
    return DeletionView(
        is_allowed=CommandKind.DELETE in allowed(state),
        reason=reason,
        runs=len(state.runs),
        models=sum(len(each.models) for each in state.runs.values()),
        checkpoints=len(checkpoints),
        checkpoint_bytes=sum(checkpoints.values()),
        predictions=sum(each.kind == "predict" for each in state.runs.values()),
        datasets=tuple(state.datasets),
        volumes=tuple(sorted(sizes.items())) if measured else None,
        measured=measured.time if measured else None,
    )
