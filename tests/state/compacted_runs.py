"""Runs with compacted sub-epochs."""

from __future__ import annotations

from functools import cache
from random import Random

from cerebro.state import Run, epoch_report
from tests.state.histories import History


class Undisturbed(History):
    """A run with failures and lost checkpoints, but without user commands that end it."""

    def _wish(self) -> bool:
        return False

    def _steer(self) -> bool:
        return False


def epochs_of_all(run: Run) -> int:
    """Return the number of epochs that all continuing models have completed."""
    return min((m.completed_epochs for m in run.models.values() if not m.is_cut_short), default=0)


@cache
def compacted_history(seed: int) -> History:
    """Return a run that compacts after each epoch."""
    history = Undisturbed(Random(seed), validated=False, epochs=20, has_gangs=True, workers=3, models=5)
    history.state.compact_after = history.run.compaction.threshold = 0
    while history.run.is_open and len(history.log) < 900:
        history.step()
        if epochs_of_all(history.run) > len(history.run.scheduling.epochs) and history.run.is_open:
            history.append(epoch_report(history.state, history.run, len(history.run.scheduling.epochs) + 1))
    assert any(model.compacted_epochs > 5 for model in history.run.models.values())
    return history
