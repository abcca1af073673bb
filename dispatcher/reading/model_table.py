"""The models of a fit run as rows, kept while its log grows: only rows of models that an event named are made anew.

With 10,000 models making all rows takes a third of a second, and each event changes one of them. What pages say of all
models together is kept with the rows, for the same reason.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice

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
        self._positions: dict[str, int] = {}
        self._hyperparameters: dict[str, None] = {}
        self._varying: tuple[str, ...] | None = None
        self._changed: dict[str, None] = dict.fromkeys(run.models)
        self._rows: dict[str, ModelSummary] = {}
        self._left: dict[str, int] = {}
        """Model -> sub-epochs that are due of it yet."""
        self._lengths: Counter[int] = Counter()
        """So many sub-epochs due -> of how many models."""
        self._done = 0
        """Sub-epochs committed."""
        self._epochs: dict[str, int] = {}
        """Model -> epochs that it completed itself."""
        self._all_epochs = 0
        self._counts: Counter[str] = Counter()
        self._metrics: set[str] = set()
        self._has_parents = False
        self._failed: dict[str, ModelSummary] = {}
        self._best: ModelSummary | None = None

    def change(self, *models: str) -> None:
        """An event named these models; some of them may be new."""
        self._changed.update(dict.fromkeys(models))

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
        names = tuple(self._hyperparameters)
        return Columns(hyperparameters=names, metrics=tuple(sorted(self._metrics)))

    @property
    def varying(self) -> tuple[str, ...]:
        """Hyper-parameters with more than one value; all of them when there is one model."""
        rows = self.rows()
        if self._varying is None:
            self._varying = hyperparams.varying(rows) if len(rows) > 1 else tuple(self._hyperparameters)
        return self._varying

    @property
    def has_parents(self) -> bool:
        """Whether a model was made from another one."""
        self._refresh()
        return self._has_parents

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
        """Tasks committed and tasks in all, of the run (`cerebro.state.Run.progress`); 0 in all while nobody knows."""
        self._refresh()
        left = sum(each * models for each, models in self._lengths.items())
        return self._done, self._done + left if self._run.has_known_end else 0

    def trained_epochs(self) -> int:
        """Epochs that models completed themselves, all models together."""
        self._refresh()
        return self._all_epochs

    def longest(self) -> int:
        """Sub-epochs due of the model of which most are."""
        self._refresh()
        return max((left for left, models in self._lengths.items() if models), default=0)

    # --- mechanism -------------------------------------------------------------------------------

    def _refresh(self) -> None:
        self._see_new()
        if not self._changed:
            return
        changed, self._changed = self._changed, {}
        is_best_gone = False
        for name in changed:
            if name not in self._positions:
                continue
            row, old = self._made(name), self._rows.get(name)
            self._rows[name] = row
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

    def _see_new(self) -> None:
        """Models are only ever added."""
        new = list(islice(self._run.models, len(self._positions), None))
        self._positions |= {name: index for index, name in enumerate(new, start=len(self._positions))}
        if new:
            self._changed = dict.fromkeys(new) | self._changed  # rows are in the order of the run

    def _made(self, name: str) -> ModelSummary:
        row = summary(self._run, self._run.models[name], self._positions[name])
        self._metrics.update(row.metrics)
        self._hyperparameters.update(dict.fromkeys(row.hyperparams))
        self._has_parents |= bool(row.parent)
        return row

    def _count_row(self, row: ModelSummary, old: ModelSummary | None) -> None:
        if old is not None:
            self._counts[old.state] -= 1
            self._lengths[self._left[row.id]] -= 1
            self._done -= old.sub_epochs_done
        self._done += row.sub_epochs_done
        model = self._run.models[row.id]
        if old is None:
            self._done -= model.visited - model.own_visited
        self._all_epochs += model.own_epochs - self._epochs.get(row.id, 0)
        self._epochs[row.id] = model.own_epochs
        left = self._run.due(model)
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
