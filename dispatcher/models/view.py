"""Models of a fit run: the table, and one model in detail.

The pages and the read API call these functions under the read model's lock; its CSV is written without the lock. A
page of the table has at most 500 rows. Functions of the read model, except that commands depend on the current user
(`access.rights`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from cerebro.commands.rules import CommandKind
from cerebro.contract.priority import shown
from cerebro.contract.records import Hyperparameters
from cerebro.contract.tasks.failures import Failure
from cerebro.errors import NotFoundError
from cerebro.figures.models import ModelProgress, ModelSummary, ranks_by_model
from cerebro.figures.ranking.folds import FoldRow, fold_rows
from cerebro.figures.ranking.repeats import RepeatRow, repeat_rows
from cerebro.state import Model, Run
from cerebro.state.models import parallel_plans
from cerebro.state.runs.pruning import removal_text
from dispatcher.access.rights import allowed_commands
from dispatcher.models.changes import ChangeRow, changes
from dispatcher.models.failed import Frame, SameFailure, same_failure, user_frame
from dispatcher.models.query import ModelQuery, matching, selected_columns
from dispatcher.pages.tables import Cell, Paged, csv_text, page_of
from dispatcher.read_models.columns import FIXED, Column, Columns, hyperparameter, metric
from dispatcher.read_models.read_model import ReadModel
from dispatcher.tabs.models import Best, FailedAttempt, best_of_fit, failed_attempts

_MAX_RETRIED = 500
"""Maximum number of models that one button retries."""
_FIRST_COLUMNS = ("id", "state", "best")
_LAST_COLUMNS = ("latest", "epoch", "progress", "best_epoch")
_LINEAGE_COLUMNS = ("lineage",)
_EFFORT_COLUMNS = ("worker", "redone")


@dataclass(frozen=True, kw_only=True)
class ColumnHead:
    """A column: name in addresses, label, and format of its cells."""

    name: str
    label: str
    kind: str


@dataclass(frozen=True, kw_only=True)
class ModelRow:
    """One model of the table.

    Attributes:
        rank: 1 for the best model of the run; equal for equal values. None without a value.
        cells: values in the order of the selected columns.
        failed_at: its failed attempt, if known.
        may: commands that the user may give.
        changed: hyperparameters that changed during its training, in words.
    """

    id: str
    index: int
    rank: int | None
    state: str
    progress: ModelProgress
    cells: tuple[Cell, ...]
    failure: Failure | None
    failed_at: FailedAttempt | None
    may: tuple[str, ...]
    changed: str = ""
    warning: str = ""
    """Warnings of its sub-epochs."""


@dataclass(frozen=True, kw_only=True)
class ModelsView(Paged):
    """A page of a fit run's models.

    Attributes:
        counts: number of models per state, over all that match the filter.
        repeats: repeated models with their means and ranks, best first.
        folds: configurations of a cross-validation with their means and ranks, best first.
        may: commands that the user may give to the run.
    """

    run: str
    metric: str
    mode: str
    is_validated: bool
    columns: tuple[ColumnHead, ...]
    available: tuple[ColumnHead, ...]
    rows: tuple[ModelRow, ...]
    query: ModelQuery
    counts: tuple[tuple[str, int], ...]
    best: Best | None
    may: tuple[str, ...]
    repeats: tuple[RepeatRow, ...] = ()
    folds: tuple[FoldRow, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EpochRow:
    """One epoch of a model.

    Attributes:
        training: metrics over all its sub-epochs.
        validation: metrics of the validation.
        checkpoint: path of its last checkpoint.
        is_kept: True if that file exists; most are removed when no longer needed.
    """

    epoch: int
    training: dict[str, Cell]
    validation: dict[str, Cell]
    checkpoint: str
    is_kept: bool
    rows: int
    seconds: float
    ended: float


@dataclass(frozen=True, kw_only=True)
class ParallelPlanRow:
    """A parallel plan of a model.

    Attributes:
        sub_epochs: number of sub-epochs with this plan.
        seconds: mean duration of a sub-epoch; None without any.
        ruled_out: why the plan is ruled out, or an empty text.
        is_next: True if the next sub-epoch uses it.
        batch_s: seconds of a batch in a trial; 0 without a trial.
        is_verified: True if a trial computed the gradient of a single device.
    """

    parallel_plan: str
    devices: int
    sub_epochs: int
    seconds: float | None
    ruled_out: str
    is_next: bool
    batch_s: float
    is_verified: bool | None


@dataclass(frozen=True, kw_only=True)
class ModelView:
    """One model of a fit run.

    Attributes:
        previous, next: ids of its neighbours in the plan.
        epochs: epochs that it completed itself, without its parent's.
        failed_at: its failed attempt, if known.
        failed_in: line of user code that raised its failure, if known.
        same_failure: models that failed for the same reason; None unless it failed.
        may_retry: models of `same_failure` that the user may retry.
        may: commands that the user may give.
        parallel_plans: in the order of preference; none for training on one device without trials.
        hyperparams: values of its next sub-epoch.
        changes: changes of hyperparameters during its training, newest first.
        priority: priority of its sub-epochs.
        verdict: why a search stopped it, or an empty text.
        removal_text: why its newest checkpoint was removed, or an empty text.
    """

    run: str
    metric: str
    mode: str
    is_validated: bool
    summary: ModelSummary
    previous: str
    next: str
    epochs: tuple[EpochRow, ...]
    failed_at: FailedAttempt | None
    may: tuple[str, ...]
    parallel_plans: tuple[ParallelPlanRow, ...]
    hyperparams: Hyperparameters
    changes: tuple[ChangeRow, ...]
    priority: str
    verdict: str = ""
    warning: str = ""
    """Warnings of its sub-epochs."""
    removal_text: str = ""
    failed_in: Frame | None = None
    same_failure: SameFailure | None = None
    may_retry: tuple[str, ...] = ()


def models(read_model: ReadModel, query: ModelQuery) -> ModelsView | None:
    """Return a page of models; `None` if no fit run is planned.

    Raises:
        BadRequestError: filter, order or a column is invalid.
    """
    run = read_model.fit(query.fit)
    if run is None:
        return None
    table = read_model.table(run)
    columns, rows = read_model.columns(run), table.rows() if query.sort else table.ranked()
    found = matching(rows, query, columns)
    default = _default_columns(
        columns, table.varying, run.fit_request.compared_names, has_parents=table.has_parents
    )
    shown_columns = selected_columns(query.columns, columns, default)
    page = page_of(found, query.page, query.size)
    request = run.fit_request
    failed = failed_attempts(run, [row.id for row in page.rows])
    ranks = _ranks(page.rows, table.ranked(), request.mode)
    return ModelsView(
        run=run.id,
        metric=request.metric,
        mode=request.mode,
        is_validated=run.is_validated,
        columns=tuple(map(_head, shown_columns)),
        available=tuple(map(_head, columns.all())),
        rows=tuple(
            _row(read_model, run, row, shown_columns, failed.get(row.id), rank=ranks.get(row.id))
            for row in page.rows
        ),
        query=query,
        counts=tuple(Counter(row.state for row in found).most_common()),
        best=best_of_fit(read_model, run),
        may=tuple(sorted(allowed_commands(read_model.state, run))),
        repeats=tuple(repeat_rows(run)),
        folds=tuple(fold_rows(run)),
        **page.fields(len(rows)),
    )


def matching_ids(read_model: ReadModel, run: Run, query: ModelQuery) -> tuple[str, ...]:
    """Return the ids of all models that match the query, in its order.

    Raises:
        BadRequestError: filter or order is invalid.
    """
    table = read_model.table(run)
    rows = table.rows() if query.sort else table.ranked()
    return tuple(row.id for row in matching(rows, query, read_model.columns(run)))


def models_csv(rows: list[ModelSummary], columns: Columns, query: ModelQuery) -> str:
    """Return all matching models as CSV, by default with all columns.

    Raises:
        BadRequestError: filter, order or a column is invalid.
    """
    shown_columns = selected_columns(query.columns, columns, columns.all())
    found = matching(rows, query, columns)
    return csv_text(
        [column.name for column in shown_columns], ([c.cell(row) for c in shown_columns] for row in found)
    )


def model(read_model: ReadModel, name: str, *, fit: str = "") -> ModelView:
    """Return one model of a fit run, by default of the newest.

    Raises:
        NotFoundError: the model does not exist.
    """
    run = read_model.fit(fit)
    row = read_model.table(run).row(name) if run else None
    if run is None or row is None:
        raise NotFoundError(
            f"no model {name!r} in {run.id if run else 'any fit run'} of {read_model.record.name!r}"
        )
    found, ids, request = run.models[name], list(run.models), run.fit_request
    checkpoints, same = run.kept_checkpoints(found), same_failure(read_model.table(run), name)
    return ModelView(
        run=run.id,
        metric=request.metric,
        mode=request.mode,
        is_validated=run.is_validated,
        summary=row,
        previous=ids[row.index - 1] if row.index else "",
        next=ids[row.index + 1] if row.index + 1 < len(ids) else "",
        epochs=tuple(
            _epoch(found, epoch, checkpoints)
            for epoch in range(found.inherited_epochs + 1, found.completed_epochs + 1)
        ),
        failed_at=failed_attempts(run, [name]).get(name),
        may=tuple(sorted(allowed_commands(read_model.state, run, found))),
        parallel_plans=tuple(_parallel_plans(run, found)),
        hyperparams=found.hyperparams,
        changes=changes(found),
        priority=shown(found.priority),
        verdict=run.search.verdicts.get(name, "") if run.search is not None else "",
        warning=run.models[name].failures.warning(run.models[name].own_sub_epochs),
        removal_text=removal_text(run, found) if found.is_pruned else "",
        failed_in=user_frame(row.failure.traceback) if row.failure else None,
        same_failure=same,
        may_retry=tuple(
            islice(
                (
                    each
                    for each in (same.models if same else ())
                    if CommandKind.RETRY_MODEL in allowed_commands(read_model.state, run, run.models[each])
                ),
                _MAX_RETRIED,
            )
        ),
    )


def _parallel_plans(run: Run, model: Model) -> Iterator[ParallelPlanRow]:
    for found in (
        parallel_plans.describe_plans(run, model) if parallel_plans.has_more_than_one(run, model) else ()
    ):
        yield ParallelPlanRow(
            parallel_plan=found.parallel_plan.label,
            devices=found.parallel_plan.size,
            sub_epochs=found.sub_epochs,
            seconds=found.seconds,
            ruled_out=found.ruled_out,
            is_next=found.is_next,
            batch_s=found.batch_s,
            is_verified=found.is_verified,
        )


def _default_columns(
    columns: Columns, varying: tuple[str, ...], compared: tuple[str, ...], *, has_parents: bool
) -> tuple[Column, ...]:
    lineage = _LINEAGE_COLUMNS if has_parents else ()
    return (
        *(FIXED[name] for name in _FIRST_COLUMNS),
        *(metric(name) for name in compared[1:] if name in columns.metrics),
        *((columns.test(),) if columns.tests else ()),
        *(hyperparameter(name) for name in varying),
        *(FIXED[name] for name in (*_LAST_COLUMNS, *lineage, *_EFFORT_COLUMNS)),
    )


def _ranks(rows: Sequence[ModelSummary], best_first: Sequence[ModelSummary], mode: str) -> dict[str, int]:
    """Return the ranks of `rows` among all models `best_first`; repeats and models without a value have none."""
    if by_rank := ranks_by_model(best_first):
        return {row.id: by_rank[row.id] for row in rows if row.id in by_rank}
    if not all(row.is_listed for row in best_first):
        places = (row.id for row in best_first if row.best is not None and row.is_listed)
        ranks = {name: place for place, name in enumerate(places, start=1)}
        return {row.id: ranks[row.id] for row in rows if row.id in ranks}
    sign = -1 if mode == "max" else 1
    values = [sign * row.best for row in best_first if row.best is not None]
    return {row.id: 1 + bisect_left(values, sign * row.best) for row in rows if row.best is not None}


def _head(column: Column) -> ColumnHead:
    return ColumnHead(name=column.name, label=column.label, kind=column.kind)


def _row(
    read_model: ReadModel,
    run: Run,
    row: ModelSummary,
    columns: tuple[Column, ...],
    failed_at: FailedAttempt | None,
    *,
    rank: int | None,
) -> ModelRow:
    return ModelRow(
        id=row.id,
        index=row.index,
        rank=rank,
        state=row.state,
        progress=row.progress,
        cells=tuple(to_json_cell(column.cell(row)) for column in columns),
        failure=row.failure,
        failed_at=failed_at,
        may=tuple(sorted(allowed_commands(read_model.state, run, run.models[row.id]))),
        changed="; ".join(
            f"{each.name} is {each.new_value!r} since {each.since}" for each in changes(run.models[row.id])
        ),
        warning=run.models[row.id].failures.warning(run.models[row.id].own_sub_epochs),
    )


def _epoch(model: Model, epoch: int, checkpoints: Collection[str]) -> EpochRow:
    totals, checkpoint = model.epoch_totals(epoch), model.epoch_checkpoint(epoch)
    return EpochRow(
        epoch=epoch,
        training={name: to_json_cell(value) for name, value in model.training_metrics(epoch).items()},
        validation={
            name: to_json_cell(value) for name, value in model.validation.metrics.get(epoch, {}).items()
        },
        checkpoint=checkpoint.name if checkpoint else "",
        is_kept=checkpoint is not None and checkpoint.name in checkpoints,
        rows=totals.rows,
        seconds=totals.seconds,
        ended=model.sub_epochs[model.sub_epochs_until(epoch) - 1].ended,
    )


def to_json_cell(value: Cell) -> Cell:
    """Return NaN and infinity as words, because JSON has no numbers for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value
