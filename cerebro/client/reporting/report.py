"""The final report of a fit run: one HTML file to send around, the answer first.

It needs nothing from anywhere: no network, no cluster, no second file. It prints. It is light or dark as the reader's
system is. It reads without scripts, because each figure's data are a table as well. Its words are in `report.html`;
here is what they are about. Whatever a user named anything, the template escapes it.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from cerebro import figures
from cerebro.client.reporting import plotting
from cerebro.client.reporting.drawings import Drawings
from cerebro.contract import SCHEMA_VERSION
from cerebro.contract.records import CodeRecord, ExperimentRecord, Hyperparameters
from cerebro.contract.runs import EtlPlan, EvaluateRequest, FitPlan, FitRequest
from cerebro.contract.tasks import CheckpointRef
from cerebro.errors import BadRequestError, NotFoundError
from cerebro.figures import THEME_COLORS, Figure, ModelSummary
from cerebro.figures.frame import number
from cerebro.state import ExperimentState, Run, RunState, parallel_plans, rungs, schedule_lines

if TYPE_CHECKING:
    from jinja2 import Environment

_MOST_MODELS = 1000
"""Rows of the table of models: the best."""
_MOST_ACTIONS = 200
"""The newest."""

Value = str | int | float | None


@dataclass(frozen=True)
class _Table:
    """Its first column names its rows."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]
    note: str = ""


def report_html(
    state: ExperimentState,
    run: Run,
    *,
    record: ExperimentRecord | None,
    now: float,
    page: str = "",
    code: Callable[[str], CodeRecord] | None = None,
) -> str:
    """The whole report as one HTML document.

    Args:
        state: of the experiment.
        run: one of its fit runs, ended or not; the report says which.
        record: what the experiment is, for its locators and its code archive.
        now: the store's clock, seconds since the epoch.
        page: address of the experiment's web page.
        code: gives the code of a hash, so that the report says what it is called; `NotFoundError` if it is gone.

    Raises:
        BadRequestError: `run` is no fit run.
        DataError: the plotly package is not installed.
    """
    from markupsafe import Markup

    if not isinstance(run.request, FitRequest):
        raise BadRequestError(f"{run.id} is not a fit run, expected one: a report shows a fit run")
    drawings = Drawings(state=state, run=run, now=now)
    rows = drawings.rows
    best = rows[0] if rows and rows[0].best is not None and rows[0].best_epoch else None
    drawn = {place: (head, made) for place, head, made in _figures(drawings) if made and made["data"]}
    plan = run.plan if isinstance(run.plan, FitPlan) else None
    varying = figures.varying(rows)
    common = rows[0].hyperparams if rows else {}

    def class_name(sha256: str) -> str:
        try:
            return code(sha256).class_name if code else ""
        except NotFoundError:
            return ""

    return (
        _environment()
        .get_template("report.html")
        .render(
            state=state,
            run=run,
            request=run.request,
            metric=run.request.metric,
            record=record,
            now=now,
            page=page,
            best=best,
            checkpoint=_checkpoint(run, best) if best else None,
            causes=_causes(rows),
            tests=list(_tests(drawings)),
            models=_models(drawings, varying),
            search=[rungs.method(run), rungs.progress(run)] if run.search is not None else [],
            rungs=list(_rungs(run)),
            parallel_plans=_parallel_plans(run),
            same=_words({name: value for name, value in common.items() if name not in varying}),
            figures=drawn,
            splits=_splits(state, plan),
            sizes=sorted(plan.partitions.values()) if plan else [],
            dataset=plan.dataset if plan else "",
            etl=state.etl_request(plan.dataset) if plan else None,
            located=_located(record),
            schedule=list(schedule_lines(state, run, run.ended or now)),
            actions=_actions(state),
            class_name=class_name,
            schema=SCHEMA_VERSION,
            python=sys.version.split()[0],
            looks=THEME_COLORS,
            policy=plotting.policy(),
            scripts=Markup(plotting.scripts({place: figure for place, (_, figure) in drawn.items()})),
            script_bytes=len(plotting.plotly_script().encode()),
        )
    )


def _checkpoint(run: Run, best: ModelSummary) -> CheckpointRef | None:
    """Of the best model's best epoch, if it is there."""
    model = run.models[best.id]
    found = model.epoch_checkpoint(best.best_epoch) if best.best_epoch else None
    return found if found is None or found.name not in model.removed else None


# --- what it tells ------------------------------------------------------------------------------------


def _figures(drawings: Drawings) -> Iterable[tuple[str, str, Figure | None]]:
    """Id of its place, heading and figure."""
    metric = drawings.request.metric
    yield "figure-curves", f"Learning curves of {metric}", drawings.curves()
    yield "figure-parallel", "Hyper-parameters side by side", drawings.parallel()
    yield "figure-scatter", f"{metric} over each hyper-parameter", drawings.scatter()
    yield "figure-heatmap", f"Best {metric} by two hyper-parameters", drawings.heatmap()
    yield "figure-importance", "Importance of hyper-parameters", drawings.importance()
    yield "figure-schedule", "Schedule", drawings.schedule()


def _models(drawings: Drawings, varying: Sequence[str]) -> _Table:
    """A row per model, best first."""
    rows, metric = drawings.rows, drawings.request.metric
    has_parents = any(row.parent for row in rows)
    origin = ("from",) if has_parents else ()
    columns = ("model", "state", f"best {metric}", "at epoch", "sub_epochs")
    columns = (*columns, *origin, *varying, "begun again", "compute, s")
    shown = [
        (
            row.id,
            row.state,
            row.best,
            row.best_epoch,
            f"{row.sub_epochs_done} of {row.sub_epochs}",
            *((row.lineage,) if has_parents else ()),
            *(figures.word(row.hyperparams.get(name)) for name in varying),
            row.redone,
            round(row.compute_s, 1),
        )
        for row in rows[:_MOST_MODELS]
    ]
    note = f"the best {_MOST_MODELS:,} of {len(rows):,}" if len(rows) > _MOST_MODELS else ""
    return _Table("Models, best first", columns, shown, note)


def _rungs(run: Run) -> Iterable[_Table]:
    """Of a search: a table for each rung, the highest first."""
    columns = ("model", run.fit_request.metric, "what became of it")
    for rung in rungs.rungs(run):
        rows = [(each.model, each.value, each.words) for each in rung.models[:_MOST_MODELS]]
        is_cut = len(rows) < len(rung.models)
        cut = f"; the best {_MOST_MODELS:,} of {len(rung.models):,}" if is_cut else ""
        yield _Table(rung.name, columns, rows, f"{rungs.counts(rung)}{cut}")


def _parallel_plans(run: Run) -> _Table:
    """By which ways each model was trained, and why others are ruled out; without rows if all ran as they are
    written."""
    columns = (
        "model",
        "parallel_plan",
        "devices",
        "sub_epochs",
        "seconds a sub-epoch",
        "trial: seconds a batch",
        "ruled out",
    )
    told = (
        (model.id, each)
        for model in run.models.values()
        if parallel_plans.has_more_than_one(run, model)
        for each in parallel_plans.told(run, model)
        if each.sub_epochs or each.ruled_out or each.batch_s
    )
    rows = [
        (
            name,
            each.parallel_plan.label,
            each.parallel_plan.size,
            each.sub_epochs,
            each.seconds,
            each.batch_s or None,
            each.ruled_out,
        )
        for name, each in told
    ]
    note = f"the first {_MOST_MODELS:,} of {len(rows):,}" if len(rows) > _MOST_MODELS else ""
    return _Table("Ways to train the models", columns, rows[:_MOST_MODELS], note)


def _tests(drawings: Drawings) -> Iterable[_Table]:
    """A table for each test run of models of this fit: what they reached on rows that chose none of them."""
    for run in figures.tests_of(drawings.state, drawings.run):
        found = figures.tested(run)
        metrics = sorted({name for one in found for name in one.metrics})
        rows = [(m.model, m.epoch, m.rows, *(m.metrics.get(name) for name in metrics)) for m in found]
        assert isinstance(run.request, EvaluateRequest)
        told = (figures.averaged(found), "" if run.state is RunState.FINISHED else str(run.state))
        note = "; ".join(part for part in told if part)
        columns = ("model", "of epoch", "rows", *metrics)
        if rows:
            yield _Table(f"{run.id}, on the split {run.request.split}", columns, rows, note)


def _causes(rows: Sequence[ModelSummary]) -> list[tuple[str, str, list[ModelSummary]]]:
    """Why models failed: kind, message and the models, most frequent first."""
    groups: defaultdict[tuple[str, str], list[ModelSummary]] = defaultdict(list)
    for row in rows:
        if row.failure is not None:
            groups[row.failure.kind, row.failure.message].append(row)
    return sorted(((*cause, models) for cause, models in groups.items()), key=lambda cause: -len(cause[2]))


def _splits(state: ExperimentState, plan: FitPlan | None) -> _Table:
    """What ETL made of each split."""
    dataset = state.datasets.get(plan.dataset) if plan else None
    runs = (run for run in state.runs.values() if isinstance(run.plan, EtlPlan))
    made = [run for run in runs if dataset and run.plan and run.plan.dataset == dataset.id]
    found = figures.etl_progress(dataset, made[-1]) if dataset and made else ()
    columns = ("split", "in", "preprocessed", "failed", "in = preprocessed + failed")
    rows = [(s.split, s.rows, s.kept, s.failed, f"{s.rows:,} = {s.kept:,} + {s.failed:,}") for s in found]
    return _Table("Rows of each split", columns, rows)


def _located(record: ExperimentRecord | None) -> _Table:
    splits = record.locators.splits() if record else {}
    rows = [(split, found.metadata, found.objects) for split, found in splits.items()]
    return _Table("Dataset locators", ("split", "metadata", "objects"), rows)


def _actions(state: ExperimentState) -> _Table:
    newest = state.commands[-_MOST_ACTIONS:]
    rows = [
        (_moment(a.time), a.by or "somebody", f"{a.what}{' (too late)' if a.is_late else ''}") for a in newest
    ]
    is_cut = len(newest) < len(state.commands)
    note = f"the newest {_MOST_ACTIONS:,} of {len(state.commands):,}" if is_cut else ""
    return _Table("Who asked for what", ("time", "who", "what"), rows, note)


# --- how it is written --------------------------------------------------------------------------------


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "shown": _shown,
        "moment": _moment,
        "words": _words,
        "quoted": repr,
        "description": figures.description,
        "data_of": lambda figure, heading: _Table(heading, *figures.table(figure)),
    }
    return made


def _shown(value: Value) -> str:
    if isinstance(value, float):
        return number(value)
    return f"{value:,}" if isinstance(value, int) else value or ""


def _moment(seconds: float) -> str:
    """A time as ISO 8601; empty if it is not known."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if seconds > 0 else ""


def _words(hyperparams: Hyperparameters) -> dict[str, str]:
    return {name: figures.word(given) for name, given in hyperparams.items()}
