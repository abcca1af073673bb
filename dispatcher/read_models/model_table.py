"""Rows of a fit run's models, updated incrementally while its log grows.

`ReadModel` owns one table per run and says which models an event changed. Building 10,000 rows takes a third of a
second, and an event usually changes one row. So rows are rebuilt only for these models, at the next access. Totals
over all models are updated with the rows. Filters and pages are in `dispatcher.models`.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice

from cerebro.figures import hyperparams
from cerebro.figures.models import ModelSummary, ranked, summary
from cerebro.figures.search import EpochValues, epoch_values
from cerebro.state import Run
from dispatcher.read_models.columns import Columns


class ModelTable:
    """Rows of one planned fit run. Not thread-safe.

    Args:
        run: the run. Its owner applies events to it, then calls `invalidate`.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._positions: dict[str, int] = {}
        self._hyperparameters: dict[str, None] = {}
        self._varying: tuple[str, ...] | None = None
        self._changed: dict[str, None] = dict.fromkeys(run.models)
        self._rows: dict[str, ModelSummary] = {}
        self._progress: dict[str, tuple[int, int, int]] = {}
        """Model -> its own committed sub-epochs, its own epochs, and its due sub-epochs."""
        self._counts: Counter[str] = Counter()
        self._metrics: set[str] = set()
        self._has_parents = False
        self._failed: dict[str, ModelSummary] = {}
        self._best: ModelSummary | None = None
        self._ranked: list[ModelSummary] | None = None
        self._epoch_values: dict[str, EpochValues] = {}
        """Filled at the first request for a figure that needs them."""

    def invalidate(self, *models: str) -> None:
        """Rebuild the rows of these models on the next access. The models may be new."""
        self._changed.update(dict.fromkeys(models))

    def invalidate_all(self) -> None:
        """Rebuild all rows on the next access, after an event that changes the state of the run."""
        self._changed = dict.fromkeys(self._run.models)

    # --- rows ------------------------------------------------------------------------------------

    def rows(self) -> list[ModelSummary]:
        """Return a new list of all models in the plan's order."""
        self._refresh()
        return list(self._rows.values())

    def ranked(self) -> list[ModelSummary]:
        """Return all models, best first (see `cerebro.figures.models.ranked`)."""
        self._refresh()
        if self._ranked is None:
            self._ranked = ranked(self._rows.values(), self._run.fit_request.mode, self._run.final_means())
        return self._ranked

    def row(self, model: str) -> ModelSummary | None:
        """Return one model; `None` if it does not exist."""
        self._refresh()
        return self._rows.get(model)

    def epoch_values(self) -> list[EpochValues]:
        """Return a new list of the values by epoch of all listed models (`ModelSummary.is_listed`)."""
        self._refresh()
        for name, row in self._rows.items():
            if name not in self._epoch_values and row.is_listed:
                self._epoch_values[name] = epoch_values(self._run, self._run.models[name], row.index)
        return list(self._epoch_values.values())

    # --- totals ----------------------------------------------------------------------------------

    def columns(self) -> Columns:
        """Return the columns of the current rows."""
        self._refresh()
        names = tuple(self._hyperparameters)
        return Columns(hyperparameters=names, metrics=tuple(sorted(self._metrics)))

    @property
    def varying(self) -> tuple[str, ...]:
        """Hyperparameters with more than one value; all of them for a single model."""
        rows = self.rows()
        if self._varying is None:
            self._varying = hyperparams.varying(rows) if len(rows) > 1 else tuple(self._hyperparameters)
        return self._varying

    @property
    def has_parents(self) -> bool:
        """True if a model is a clone of another one."""
        self._refresh()
        return self._has_parents

    def counts(self) -> tuple[tuple[str, int], ...]:
        """Return the number of models per state, largest first."""
        self._refresh()
        return tuple((word, count) for word, count in self._counts.most_common() if count)

    def failed(self) -> list[ModelSummary]:
        """Return failed models in the order of their failures."""
        self._refresh()
        return list(self._failed.values())

    def best(self) -> ModelSummary | None:
        """Return the model with the best objective, the first of equal ones; `None` without any."""
        self._refresh()
        if self._run.fit_request.repeats is not None or self._run.fit_request.folds is not None:
            return next((row for row in self.ranked()[:1] if row.best is not None), None)
        return self._best

    def progress(self) -> tuple[int, int]:
        """Return committed and total tasks (see `cerebro.state.Run.progress`). A total of 0 means unknown."""
        self._refresh()
        done = sum(trained for trained, _, _ in self._progress.values())
        return done, done + sum(
            due for _, _, due in self._progress.values()
        ) if self._run.has_known_end else 0

    def trained_epochs(self) -> int:
        """Return the total number of epochs that models completed themselves."""
        self._refresh()
        return sum(epochs for _, epochs, _ in self._progress.values())

    def longest(self) -> int:
        """Return the maximum number of due sub-epochs of a model."""
        self._refresh()
        return max((due for _, _, due in self._progress.values()), default=0)

    def _refresh(self) -> None:
        self._add_new()
        if not self._changed:
            return
        changed, self._changed = self._changed, {}
        self._ranked = None
        is_best_gone = False
        for name in changed:
            if name not in self._positions:
                continue
            row, old = self._build(name), self._rows.get(name)
            self._rows[name] = row
            self._epoch_values.pop(name, None)
            if old is None or old.hyperparams != row.hyperparams:
                self._varying = None
            self._count_row(row, old)
            is_best_gone |= old is not None and old is self._best
            if self._is_better(row, self._best):
                self._best = row
                is_best_gone = False
        if is_best_gone:
            self._best = None
            for row in self._rows.values():
                if self._is_better(row, self._best):
                    self._best = row

    def _add_new(self) -> None:
        new = list(islice(self._run.models, len(self._positions), None))
        self._positions |= {name: index for index, name in enumerate(new, start=len(self._positions))}
        if new:
            self._changed = dict.fromkeys(new) | self._changed  # rows are in the order of the run

    def _build(self, name: str) -> ModelSummary:
        row = summary(self._run, self._run.models[name], self._positions[name])
        self._metrics.update(row.metrics)
        self._hyperparameters.update(dict.fromkeys(row.hyperparams))
        self._has_parents |= bool(row.parent)
        return row

    def _count_row(self, row: ModelSummary, old: ModelSummary | None) -> None:
        if old is not None:
            self._counts[old.state] -= 1
        model = self._run.models[row.id]
        self._progress[row.id] = model.own_trained, model.own_epochs, self._run.due(model)
        self._counts[row.state] += 1
        if row.failure is not None:
            self._failed[row.id] = row
        else:
            self._failed.pop(row.id, None)

    def _is_better(self, row: ModelSummary, than: ModelSummary | None) -> bool:
        if row.best is None:
            return False
        if than is None or than.best is None:
            return True
        mode = self._run.fit_request.mode
        return row.is_better(than, mode) if than.id != row.id else not than.is_better(row, mode)
