"""The models of a fit run as rows, kept while its log grows: only rows of models that an event named are made anew.

With 10,000 models making all rows takes a third of a second, and each event changes one of them. What pages say of all
models together is kept with the rows, for the same reason.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property

from cerebro.figures import hyperparams
from cerebro.figures.models import ModelSummary, summary
from cerebro.state import Run
from dispatcher.reading.columns import Columns


class ModelTable:
    """The rows of one planned fit run. One owner, not thread-safe.

    Args:
        run: the run, as the fold that is kept beside this changes it.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._sign = 1 if run.fit_request.mode == "max" else -1
        self._positions = {model: index for index, model in enumerate(run.models)}
        names = dict.fromkeys(name for model in run.models.values() for name in model.hyperparams)
        self._hyperparameters = tuple(names)
        self._changed: dict[str, None] = dict.fromkeys(run.models)
        self._rows: dict[str, ModelSummary] = {}
        self._left: dict[str, int] = {}
        """Model -> units that are due of it yet."""
        self._lengths: Counter[int] = Counter()
        """So many units due -> of how many models."""
        self._done = 0
        """Units committed."""
        self._counts: Counter[str] = Counter()
        self._metrics: set[str] = set()
        self._failed: dict[str, ModelSummary] = {}
        self._best: ModelSummary | None = None

    def change(self, model: str) -> None:
        """An event named this model."""
        self._changed[model] = None

    def change_all(self) -> None:
        """An event changed the run: what its models do is called by another word, perhaps."""
        self._changed = dict.fromkeys(self._run.models)

    # --- one by one ------------------------------------------------------------------------------

    def rows(self) -> list[ModelSummary]:
        """All models, in the order of the plan; the list is the caller's."""
        self._refresh()
        return list(self._rows.values())

    def row(self, model: str) -> ModelSummary | None:
        """One model, or `None` if there is none of that name."""
        self._refresh()
        return self._rows.get(model)

    # --- together --------------------------------------------------------------------------------

    def columns(self) -> Columns:
        """The columns that the rows have by now."""
        self._refresh()
        return Columns(hyperparameters=self._hyperparameters, metrics=tuple(sorted(self._metrics)))

    @cached_property
    def varying(self) -> tuple[str, ...]:
        """Hyper-parameters with more than one value; all of them when there is one model."""
        return hyperparams.varying(self.rows()) if len(self._positions) > 1 else self._hyperparameters

    def counts(self) -> tuple[tuple[str, int], ...]:
        """Models by the word for their state, most first."""
        self._refresh()
        return tuple((word, count) for word, count in self._counts.most_common() if count)

    def count(self, word: str) -> int:
        """Models of one state."""
        self._refresh()
        return self._counts[word]

    def failed(self) -> list[ModelSummary]:
        """Models that were given up, in the order in which they were."""
        self._refresh()
        return list(self._failed.values())

    def best(self) -> ModelSummary | None:
        """The model with the best objective, the first of equals; `None` while there is none."""
        self._refresh()
        return self._best

    def progress(self) -> tuple[int, int]:
        """Tasks committed and tasks in all, of the run (`cerebro.state.Run.progress`)."""
        self._refresh()
        left = sum(each * models for each, models in self._lengths.items())
        return self._done, self._done + left

    def longest(self) -> int:
        """Units due of the model of which most are."""
        self._refresh()
        return max((left for left, models in self._lengths.items() if models), default=0)

    # --- mechanism -------------------------------------------------------------------------------

    def _refresh(self) -> None:
        if not self._changed:
            return
        changed, self._changed = self._changed, {}
        is_best_gone = False
        for name in changed:
            if name not in self._positions:
                continue
            row, old = self._made(name), self._rows.get(name)
            self._rows[name] = row
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

    def _made(self, name: str) -> ModelSummary:
        row = summary(self._run, self._run.models[name], self._positions[name])
        self._metrics.update(row.metrics)
        return row

    def _count_row(self, row: ModelSummary, old: ModelSummary | None) -> None:
        if old is not None:
            self._counts[old.state] -= 1
            self._lengths[self._left[row.id]] -= 1
            self._done -= old.units_done
        self._done += row.units_done
        left = self._run.due(self._run.models[row.id])
        self._left[row.id] = left
        self._lengths[left] += 1
        self._counts[row.state] += 1
        if row.failure is not None:
            self._failed[row.id] = row
        else:
            self._failed.pop(row.id, None)

    def _is_better(self, row: ModelSummary, than: ModelSummary | None) -> bool:
        if row.best is None:
            return False
        if than is None or than.best is None or than.id == row.id:
            return than is None or than.best is None or self._sign * row.best >= self._sign * than.best
        difference = self._sign * (row.best - than.best)
        return difference > 0 or (difference == 0 and row.index < than.index)
