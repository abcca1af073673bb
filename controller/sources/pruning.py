"""Checkpoints of a search to remove now. Derived from the state, so each decision checks few models.

A model is checked after its training has ended, in batches of one percent of the models. Models with files
that may become removable later are checked again each time. `cerebro.state.runs.pruning` decides which files to
remove, and `controller.storage.pruned_files` removes them.
"""

from __future__ import annotations

from collections.abc import Mapping

from cerebro.contract.events import CheckpointsPruned
from cerebro.search.procedure import Failed, Reached, Stopped
from cerebro.state import ModelState, Run
from cerebro.state.runs.pruning import may_go_on, prunable

_SHARE = 100
"""One model in this many must wait before a check."""


class Pruning:
    """Pruning of one run's search. Creating it scans all models.

    Attributes:
        run: id of the run.
    """

    def __init__(self, run: Run) -> None:
        assert run.search is not None
        self.run = run.id
        self._reports, self._decisions = len(run.search.reports), len(run.search.decisions)
        self._is_over = False
        self._waiting = _not_active(run)
        """Models whose training has ended since the last check."""
        self._held: set[str] = set()
        """Other models with files that may become removable without a new event."""

    def step(self, runs: Mapping[str, Run], run: Run, *, is_last: bool = False) -> CheckpointsPruned | None:
        """Return the event to write now, or `None`.

        Args:
            runs: runs of the experiment.
            is_last: True for the last call before the run ends or pauses.
        """
        self._observe(run)
        few = 0 if is_last else len(run.models) // _SHARE
        if len(self._waiting) <= few and not (is_last and self._held):
            return None
        return self._find_prunable(runs, run)

    def _observe(self, run: Run) -> None:
        log = run.search
        assert log is not None
        for report in log.reports[self._reports :]:
            if isinstance(report, Reached | Failed | Stopped):
                self._waiting.add(report.model)
        for decision in log.decisions[self._decisions :]:
            self._waiting.update(decision.stop)
        self._reports, self._decisions = len(log.reports), len(log.decisions)
        is_over = log.finish is not None and not run.counts.active
        if is_over and not self._is_over:
            self._waiting |= _not_active(run)
        self._is_over = is_over

    def _find_prunable(self, runs: Mapping[str, Run], run: Run) -> CheckpointsPruned | None:
        best = {model.id for model in run.best_models(run.keep or 0)}
        looked_at, files = self._waiting | self._held, {}
        self._waiting, self._held = set(), set()
        for name in run.counts.in_order(looked_at):
            model = run.models[name]
            prunable_files, there = prunable(runs, run, model, best)
            if prunable_files:
                files[name] = tuple(sorted(prunable_files))
            if (
                there
                and model.state is not ModelState.ACTIVE
                and (prunable_files or not may_go_on(run, model))
            ):
                self._held.add(name)
        return CheckpointsPruned(run=run.id, files=files) if files else None


def _not_active(run: Run) -> set[str]:
    return {model.id for model in run.models.values() if model.state is not ModelState.ACTIVE}
