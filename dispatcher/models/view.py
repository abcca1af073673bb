"""The models of a fit run as a table, and one of them alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from cerebro.contract.priority import shown
from cerebro.contract.records import Hyperparameters
from cerebro.contract.tasks import Failure
from cerebro.errors import NotFoundError
from cerebro.figures.models import ModelSummary
from cerebro.state import Model, Run, parallel_plans
from cerebro.state.pruning import gone_text
from dispatcher.access.rights import offered
from dispatcher.models.changes import ChangeRow, changes
from dispatcher.models.query import ModelQuery, chosen, matching
from dispatcher.pages.tables import Cell, Paged, csv_text, page_of
from dispatcher.reading.columns import FIXED, Column, Columns, hyperparameter
from dispatcher.reading.read_model import ReadModel
from dispatcher.tabs.models import Best, FailedAttempt, best_of_fit, failed_attempts

_DEFAULT = ("id", "state", "best", "latest", "epoch", "progress", "best_epoch")
_LINEAGE = ("lineage",)
_DEFAULT_AFTER = ("worker", "redone")


@dataclass(frozen=True, kw_only=True)
class ColumnHead:
    """A column's name for addresses, what stands above it, and how its cells are written."""

    name: str
    label: str
    kind: str


@dataclass(frozen=True, kw_only=True)
class ModelRow:
    """One model: what every row has, and `cells` in the order of the columns that were asked for. `failed_at`: the
    attempt at which it failed, if that is known; `changed`: in words, the values that it is trained with now and was
    not from its first sub-epoch on."""

    id: str
    index: int
    state: str
    sub_epochs_done: int
    sub_epochs: int
    cells: tuple[Cell, ...]
    failure: Failure | None
    failed_at: FailedAttempt | None
    may: tuple[str, ...]
    changed: str = ""
    warning: str = ""
    """Warnings of its sub-epochs."""


@dataclass(frozen=True, kw_only=True)
class ModelsView(Paged):
    """A page of the models of a fit run; `counts` are by state, of those that fit the filter; `may` is what may be
    asked of the run."""

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


@dataclass(frozen=True, kw_only=True)
class EpochRow:
    """One epoch of a model: metrics of its sub-epochs together; what validation returned; its last checkpoint, and
    whether that file is kept: most are removed once nothing needs them."""

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
    """A way to train a model; `seconds` are those of a sub-epoch on average, None while there is none. `ruled_out` says
    why it cannot be used, and is empty if it can. A trial has shown `batch_s`, the seconds of a batch, 0 if there was
    none, and `is_verified`, whether the gradient is that of one device."""

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
    """One model of a fit run and the epochs that it completed itself; `previous` and `next` are its neighbours' ids,
    `failed_at` is the attempt at which it failed, if that is known. `parallel_plans`: those first that are tried first;
    none where it is trained on one device, as user code is written, and nothing else was tried. `verdict`: why a search
    has stopped it; empty if none has. `hyperparams`: with which its next sub-epoch is trained; `changes`: those of them
    that it did not have from its first sub-epoch on, newest first; `priority`: of its sub-epochs. `gone`: that its
    newest checkpoint was removed, and why; empty if it was not."""

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
    gone: str = ""


def models(read_model: ReadModel, asked: ModelQuery) -> ModelsView | None:
    """A page of the models; `None` while there is no planned fit run.

    Raises:
        BadRequestError: the filter, the order or a column cannot be understood.
    """
    run = read_model.fit(asked.fit)
    if run is None:
        return None
    table = read_model.table(run)
    columns, rows = table.columns(), table.rows()
    found = matching(rows, asked, columns)
    default = _default(columns, table.varying, has_parents=table.has_parents)
    shown = chosen(asked.columns, columns, default)
    page = page_of(found, asked.page, asked.size)
    request = run.fit_request
    failed = failed_attempts(run, [row.id for row in page.rows])
    return ModelsView(
        run=run.id,
        metric=request.metric,
        mode=request.mode,
        is_validated=run.is_validated,
        columns=tuple(map(_head, shown)),
        available=tuple(map(_head, columns.all())),
        rows=tuple(_row(read_model, run, row, shown, failed.get(row.id)) for row in page.rows),
        query=asked,
        counts=tuple(Counter(row.state for row in found).most_common()),
        best=best_of_fit(read_model, run),
        may=tuple(sorted(offered(read_model.state, run))),
        **page.of(len(rows)),
    )


def models_csv(rows: list[ModelSummary], columns: Columns, asked: ModelQuery) -> str:
    """All models that fit, not a page of them, as CSV; all columns unless some are asked for.

    Raises:
        BadRequestError: the filter, the order or a column cannot be understood.
    """
    shown = chosen(asked.columns, columns, columns.all())
    found = matching(rows, asked, columns)
    return csv_text([column.name for column in shown], ([c.cell(row) for c in shown] for row in found))


def model(read_model: ReadModel, name: str, *, fit: str = "") -> ModelView:
    """One model of a fit run (default: the newest).

    Raises:
        NotFoundError: there is none of that name.
    """
    run = read_model.fit(fit)
    row = read_model.table(run).row(name) if run else None
    if run is None or row is None:
        raise NotFoundError(
            f"no model {name!r} in {run.id if run else 'any fit run'} of {read_model.record.name!r}"
        )
    found, ids, request = run.models[name], list(run.models), run.fit_request
    kept = run.kept_checkpoints(found)
    return ModelView(
        run=run.id,
        metric=request.metric,
        mode=request.mode,
        is_validated=run.is_validated,
        summary=row,
        previous=ids[row.index - 1] if row.index else "",
        next=ids[row.index + 1] if row.index + 1 < len(ids) else "",
        epochs=tuple(
            _epoch(found, epoch, kept)
            for epoch in range(found.inherited_epochs + 1, found.completed_epochs + 1)
        ),
        failed_at=failed_attempts(run, [name]).get(name),
        may=tuple(sorted(offered(read_model.state, run, found))),
        parallel_plans=tuple(_parallel_plans(run, found)),
        hyperparams=found.hyperparams,
        changes=changes(found),
        priority=shown(found.priority),
        verdict=run.search.verdicts.get(name, "") if run.search is not None else "",
        warning=run.models[name].warning,
        gone=gone_text(run, found) if found.is_pruned else "",
    )


def _parallel_plans(run: Run, model: Model) -> Iterator[ParallelPlanRow]:
    for found in parallel_plans.told(run, model) if parallel_plans.has_more_than_one(run, model) else ():
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


def _default(columns: Columns, varying: tuple[str, ...], *, has_parents: bool) -> tuple[Column, ...]:
    own = (hyperparameter(name) for name in varying)
    lineage = _LINEAGE if has_parents else ()
    return (*(FIXED[name] for name in (*_DEFAULT, *lineage)), *own, *(FIXED[name] for name in _DEFAULT_AFTER))


def _head(column: Column) -> ColumnHead:
    return ColumnHead(name=column.name, label=column.label, kind=column.kind)


def _row(
    read_model: ReadModel,
    run: Run,
    row: ModelSummary,
    columns: tuple[Column, ...],
    failed_at: FailedAttempt | None,
) -> ModelRow:
    return ModelRow(
        id=row.id,
        index=row.index,
        state=row.state,
        sub_epochs_done=row.sub_epochs_done,
        sub_epochs=row.sub_epochs,
        cells=tuple(told(column.cell(row)) for column in columns),
        failure=row.failure,
        failed_at=failed_at,
        may=tuple(sorted(offered(read_model.state, run, run.models[row.id]))),
        changed="; ".join(
            f"{each.name} is {each.after!r} since {each.since}" for each in changes(run.models[row.id])
        ),
        warning=run.models[row.id].warning,
    )


def _epoch(model: Model, epoch: int, kept: Collection[str]) -> EpochRow:
    totals, checkpoint = model.epoch_totals(epoch), model.epoch_checkpoint(epoch)
    return EpochRow(
        epoch=epoch,
        training={name: told(value) for name, value in model.training_metrics(epoch).items()},
        validation={name: told(value) for name, value in model.validations.get(epoch, {}).items()},
        checkpoint=checkpoint.name if checkpoint else "",
        is_kept=checkpoint is not None and checkpoint.name in kept,
        rows=totals.rows,
        seconds=totals.seconds,
        ended=model.visits[model.visits_until(epoch) - 1].ended,
    )


def told(value: Cell) -> Cell:
    """NaN and infinity as words: JSON has no numbers for them, and nothing would hide them."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value
