"""Summary of each model of a fit run, for tables, filters and figures; scores to compare models. Pure.

Figures, reports, progress in notebooks and the page's views of models call it with a `Run`; it reads only the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cerebro.contract.records import Hyperparameters
from cerebro.contract.tasks.failures import Failure
from cerebro.contract.texts import first_line
from cerebro.search.pareto import Point, ranks
from cerebro.state import Model, Run
from cerebro.state.models.progress import Fold
from cerebro.state.reports import state_words
from cerebro.state.runs.compared_values import point_of, reported_values


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelProgress:
    """Progress of one model.

    Attributes:
        epoch, epochs: present epoch, and number of granted epochs.
        done, total: committed sub-epochs and their total, with those inherited from a parent.
    """

    epoch: int
    epochs: int
    done: int
    total: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """Work on one model. Times are seconds of the store's clock, 0 while unknown.

    Attributes:
        redone: repeated attempts at its sub-epochs.
        compute_s: time spent in user code.
        started, ended: start of its first and end of its newest committed sub-epoch.
    """

    redone: int
    compute_s: float
    started: float
    ended: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Parent:
    """Model that another one was cloned from, or repeats.

    Attributes:
        id: such as ``m03``.
        epoch: epoch of its checkpoint that the clone started from, or `None` if the clone has new weights.
        seed: seed of a repeat of this model; `None` for a clone.
    """

    id: str
    epoch: int | None
    seed: int | None = None

    def __str__(self) -> str:
        if self.seed is not None:
            return f"{self.id}, seed {self.seed}"
        return f"{self.id}, new weights" if self.epoch is None else f"{self.id} at epoch {self.epoch}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSummary:
    """Summary of one model.

    Attributes:
        id: such as ``m03``.
        index: position among the run's models, from 0. It decides the model's colour.
        state: a word of `cerebro.state.reports.state_words`.
        latest, latest_epoch: objective at the newest epoch that has it.
        best, best_epoch: objective at the best epoch.
        metrics: metrics at the best epoch, else at the newest one: of validation if the run validates, else of
            training.
        hyperparams: as in the search space.
        worker: worker of its running or queued sub-epoch; empty without one.
        failure: reason why it failed.
        parent: model it was cloned from, if any.
        fold: fold of a cross-validation; `None` in other runs.
        tags: tags of users, with the note.
        point: objectives and constraints at the best epoch; empty for a fit with one objective and no constraint.
    """

    id: str
    index: int
    state: str
    progress: ModelProgress
    latest: float | None
    latest_epoch: int | None
    best: float | None
    best_epoch: int | None
    metrics: dict[str, float]
    hyperparams: Hyperparameters
    worker: str
    effort: Effort
    failure: Failure | None
    parent: Parent | None = None
    fold: Fold | None = None
    tags: dict[str, str] = field(default_factory=dict)
    point: Point = field(default=Point(()))

    def is_better(self, other: ModelSummary, mode: str) -> bool:
        """Return True if this model ranks before another one; both have a value. Without several objectives and
        constraints, by the objective; of equal models the earlier one.
        """
        return self._key(mode) < other._key(mode)

    def _key(self, mode: str) -> tuple[bool, tuple[float, ...], int]:
        assert self.best is not None
        losses = self.point.losses or (self.best if mode == "min" else -self.best,)
        return not self.point.is_feasible, losses, self.index

    @property
    def is_repeat(self) -> bool:
        """True if it repeats another model with a new seed."""
        return self.parent is not None and self.parent.seed is not None

    @property
    def is_listed(self) -> bool:
        """True unless another model stands for it; see `Model.is_listed`."""
        return not self.is_repeat and (self.fold is None or self.fold.number == 1)


def summaries(run: Run) -> Iterator[ModelSummary]:
    """Yield the summaries of a fit run's models in order; none for another run."""
    for index, model in enumerate(run.models.values()):
        yield summary(run, model, index)


def summary(run: Run, model: Model, index: int) -> ModelSummary:
    """Summarize one model of a fit run; `index` is its position, from 0."""
    request, validated = run.fit_request, run.is_validated
    latest = model.latest_epoch(request.metric, validated=validated)
    best = model.best_epoch(request.metric, request.mode, validated=validated)
    task = run.tasks.by_key.get(model.busy) if model.busy else None
    shown_epoch = best or latest or model.completed_epochs
    return ModelSummary(
        id=model.id,
        index=index,
        state=state_words.model(model, run),
        progress=ModelProgress(
            epoch=model.epoch,
            epochs=model.epochs,
            done=model.progress.trained,
            total=model.epochs * len(model.partitions),
        ),
        latest=model.metric(request.metric, latest, validated=validated) if latest else None,
        latest_epoch=latest,
        best=model.metric(request.metric, best, validated=validated) if best else None,
        best_epoch=best,
        metrics=reported_values(run, model, shown_epoch)
        if request.is_multi_objective and best
        else model.metrics(shown_epoch, validated=validated),
        hyperparams=model.hyperparams_shown(best),
        worker=(task.worker or "") if task else "",
        effort=Effort(
            redone=model.effort.repeated_attempts,
            compute_s=model.effort.compute_s,
            started=model.effort.began,
            ended=model.sub_epochs[-1].ended if model.own_sub_epochs else 0.0,
        ),
        failure=model.failures.final,
        parent=Parent(
            id=model.lineage.parent,
            epoch=model.inherited_epochs if model.lineage.sub_epochs else None,
            seed=model.lineage.seed,
        )
        if model.lineage.parent
        else None,
        fold=model.lineage.fold,
        tags=model.tags,
        point=point_of(run, model, best) if best else Point(()),
    )


def scores(rows: Sequence[ModelSummary], values: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return model id -> its best objective, or its value in `values`; models without one are omitted."""
    values_by_model = {row.id: row.best if values is None else values.get(row.id) for row in rows}
    return {model: value for model, value in values_by_model.items() if value is not None}


def values_at(run: Run, epoch: int, *, margin: int = 0) -> dict[str, float]:
    """Return model id -> its objective at `epoch`, to compare models of unequal progress.

    Args:
        run: a fit run.
        epoch: from 1.
        margin: epochs before `epoch` to search for the nearest value, for models without one at `epoch`.
    """
    values_by_model = {}
    for model in run.models.values():
        for candidate in range(epoch, max(0, epoch - margin - 1), -1):
            value = model.metric(run.fit_request.metric, candidate, validated=run.is_validated)
            if value is not None:
                values_by_model[model.id] = value
                break
    return values_by_model


def ranked(
    rows: Iterable[ModelSummary], mode: str, means: Mapping[str, float] | None = None
) -> list[ModelSummary]:
    """Sort models, best first; models without a value come later, more advanced ones first.

    Repeats and later folds of a configuration are last.

    With several objectives or constraints, in the order of `cerebro.state.models.best`.

    Args:
        means: result of `Run.final_means`; these models come first, by their means.
    """
    sign, means, rows = 1 if mode == "min" else -1, means or {}, list(rows)
    by_rank = ranks_by_model(rows)

    def key(row: ModelSummary) -> tuple[bool, bool, bool, int, tuple[float, ...], int]:
        value, losses = means.get(row.id, row.best), row.point.losses
        if value is None:
            losses = (-row.progress.done,)
        elif not losses:
            losses = (sign * value,)
        return (
            not row.is_listed,
            value is None,
            row.id not in means,
            by_rank.get(row.id, 0),
            losses,
            row.index,
        )

    return sorted(rows, key=key)


def ranks_by_model(rows: Iterable[ModelSummary]) -> dict[str, int]:
    """Return model -> non-dominated rank, from 1; none for repeats, or with one objective and no constraint."""
    known = [row for row in rows if row.best is not None and row.point.losses and row.is_listed]
    return dict(zip((row.id for row in known), ranks([row.point for row in known]), strict=True))


def failure_groups(rows: Iterable[ModelSummary]) -> list[tuple[Failure, list[ModelSummary]]]:
    """Group failed models by kind and first line of the message, largest group first, each with its first failure."""
    groups: dict[tuple[str, str], tuple[Failure, list[ModelSummary]]] = {}
    for row in rows:
        if row.failure is not None:
            _, models = groups.setdefault(
                (row.failure.kind, first_line(row.failure.message)), (row.failure, [])
            )
            models.append(row)
    return sorted(groups.values(), key=lambda group: -len(group[1]))
