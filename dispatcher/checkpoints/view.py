"""Checkpoints that a fit run keeps, with the reasons. Pure.

The event log is the only source: whether the files exist is checked by `dispatcher.checkpoints.lost`. The page and
the read API call `checkpoints` under the read model's lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from cerebro.contract.runs import FitRequest
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.figures.models import ModelSummary, ranked
from cerebro.state import Model, Run
from cerebro.state.runs.pruning import removal_text
from dispatcher.pages.tables import page_of
from dispatcher.read_models.read_model import ReadModel

PAGE = 50
"""Models per page."""


@dataclass(frozen=True, kw_only=True)
class CheckpointRow:
    """One file of the checkpoint volume.

    Attributes:
        index: position of the model in the plan.
        epoch: epoch of its sub-epoch.
        is_epoch_end: True if it contains all sub-epochs of the epoch.
        value: objective at that epoch; None in the middle of an epoch, or if unknown.
        is_best: True for the model's best epoch.
        name: path on the volume.
        checksum: xxh3-64 of the file.
        size: bytes.
        written: seconds since the epoch.
        reasons: reasons to keep the file, most important first.
    """

    model: str
    index: int
    epoch: int
    is_epoch_end: bool
    value: float | None
    is_best: bool
    name: str
    checksum: str
    size: int
    written: float
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CheckpointsView:
    """One page of checkpoints, best model first.

    Attributes:
        best: best checkpoint of the best model.
        removal_text: why the requested `model` has no checkpoints, or an empty text.
    """

    run: str
    metric: str
    mode: str
    rows: tuple[CheckpointRow, ...]
    best: CheckpointRow | None
    model: str
    page: int
    pages: int
    models: int
    removal_text: str = ""


def checkpoints(read_model: ReadModel, *, fit: str = "", model: str = "", page: int = 1) -> CheckpointsView:
    """Return one page of a fit run's checkpoints. Default: all models of the newest run."""
    run = read_model.fit(fit)
    if run is None or not isinstance(run.request, FitRequest):
        return CheckpointsView(
            run="", metric="", mode="", rows=(), best=None, model=model, page=1, pages=1, models=0
        )
    rows = ranked(read_model.table(run).rows(), run.request.mode)
    with_files = [row for row in rows if row.progress.done and _has_checkpoint(run, row.id)]
    chosen = [row for row in with_files if model in ("", row.id)]
    shown = page_of(chosen, page, PAGE)
    first = with_files[0] if with_files and with_files[0].best_epoch else None
    return CheckpointsView(
        run=run.id,
        metric=run.request.metric,
        mode=run.request.mode,
        rows=tuple(each for row in shown.rows for each in _model_rows(run, row)),
        best=next((each for each in _model_rows(run, first) if each.is_best), None) if first else None,
        model=model,
        page=shown.page,
        pages=shown.pages,
        models=len(chosen),
        removal_text=removal_text(run, run.models[model])
        if model in run.models and run.models[model].is_pruned
        else "",
    )


def _has_checkpoint(run: Run, name: str) -> bool:
    model = run.models[name]
    if not model.is_pruned:
        return True
    kept_files = run.kept_checkpoints(model)
    return any(sub_epoch.checkpoint.name in kept_files for sub_epoch in model.known_sub_epochs)


def reference(read_model: ReadModel, name: str) -> CheckpointRef | None:
    """Return the checkpoint with that path if the log names it, else `None`."""
    parts = name.split("/")
    if len(parts) < 3:  # experiment, run, model and file, as in `cerebro.runtime.volumes`
        return None
    run = read_model.state.runs.get(parts[1])
    model = run.models.get(parts[2]) if run else None
    if run is None or model is None:
        return None
    sub_epochs = chain(model.known_sub_epochs, run.checkpoints.parent_checkpoints_of(model, run.models))
    files = (sub_epoch.checkpoint for sub_epoch in sub_epochs)
    return next((file.ref() for file in files if file.name == name), None)


def _model_rows(run: Run, row: ModelSummary) -> Iterable[CheckpointRow]:
    model, request = run.models[row.id], run.request
    assert isinstance(request, FitRequest)
    needed = run.kept_checkpoints(model)
    sub_epochs = (
        sub_epoch
        for sub_epoch in range(model.lineage.sub_epochs, len(model.sub_epochs))
        if model.sub_epochs.knows(sub_epoch)
    )
    for sub_epoch in reversed([*sub_epochs]):
        completed = model.sub_epochs[sub_epoch]
        if completed.checkpoint.name not in needed:
            continue
        is_end = (
            sub_epoch + 1 == model.sub_epochs_until(completed.epoch)
            and completed.epoch <= model.completed_epochs
        )
        value = model.metric(request.metric, completed.epoch, validated=run.is_validated) if is_end else None
        is_best = is_end and completed.epoch == row.best_epoch
        yield CheckpointRow(
            model=row.id,
            index=row.index,
            epoch=completed.epoch,
            is_epoch_end=is_end,
            value=value,
            is_best=is_best,
            name=completed.checkpoint.name,
            checksum=completed.checkpoint.checksum,
            size=completed.checkpoint.size,
            written=completed.ended,
            reasons=tuple(_reasons(run, model, sub_epoch, is_best=is_best, is_end=is_end)),
        )


def _reasons(run: Run, model: Model, sub_epoch: int, *, is_best: bool, is_end: bool) -> Iterable[str]:
    newest = len(model.sub_epochs) - 1
    if is_best:
        yield "best epoch"
    if sub_epoch == newest:
        yield "last state" if model.is_trained else "parent of the next sub-epoch"
    if sub_epoch == newest - 1:
        yield "backup of the newest checkpoint"
    name = model.sub_epochs[sub_epoch].checkpoint.name
    for young in run.checkpoints.young.values():
        if young.sub_epochs[young.lineage.sub_epochs - 1].checkpoint.name == name:
            yield f"parent checkpoint of {young.id}"
    if is_end and run.is_validated and model.validation.may_come(model.sub_epochs[sub_epoch].epoch):
        yield "validation pending"
