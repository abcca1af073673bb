"""Report of a fit run as one self-contained HTML file, for `FitResult.report` and `dispatcher.overview.report`.

It needs neither network nor cluster, can be printed, follows the reader's light or dark theme, and is readable without
scripts, because each figure's data is also in a table. The text is in `report.html`, which escapes all user values;
this module computes the values.
"""

from __future__ import annotations

import sys
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
from cerebro.errors import BadRequestError, NotFoundError
from cerebro.figures import THEME_COLORS, Figure
from cerebro.figures.frame import number
from cerebro.figures.models import failure_groups
from cerebro.figures.ranking.folds import fold_rows
from cerebro.figures.ranking.repeats import repeat_rows
from cerebro.state import ExperimentState, Run, RunState, schedule_lines
from cerebro.state.models import parallel_plans
from cerebro.state.models.best import best_in
from cerebro.state.runs import rungs

if TYPE_CHECKING:
    from jinja2 import Environment

_MAX_MODELS = 1000
"""Rows of the table of models; the best are kept."""
_MAX_ACTIONS = 200
"""Rows of the table of commands; the newest are kept."""

Value = str | int | float | None


@dataclass(frozen=True)
class _Table:
    """A table whose first column has the row headers."""

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
    """Return the report as an HTML document.

    Args:
        state: state of the experiment.
        run: fit run, ended or not; the report says which.
        record: record of the experiment, for locators and code archive.
        now: time of the report, in seconds of the store's clock.
        page: address of the experiment's web page; empty to omit it.
        code: returns the code record of a hash, for class names; `NotFoundError` if deleted.

    Raises:
        BadRequestError: `run` is not a fit run.
        DataError: the plotly package is not installed.
    """
    from markupsafe import Markup

    if not isinstance(run.request, FitRequest):
        raise BadRequestError(f"{run.id} is not a fit run: choose a fit run for the report")
    drawings = Drawings(state=state, run=run, now=now)
    rows = drawings.rows
    best = rows[0] if rows and rows[0].best is not None and rows[0].best_epoch else None
    plots = {
        element: (heading, figure)
        for element, heading, figure in _figures(drawings)
        if figure and figure["data"]
    }
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
            checkpoint=found.checkpoint if (found := best_in(run)) else None,
            causes=failure_groups(rows),
            tests=list(_tests(drawings)),
            models=_models(drawings, varying),
            repeats=_repeats(run),
            folds=_folds(run),
            search=[rungs.method(run), rungs.progress(run), *rungs.earlier_lines(run)]
            if run.search is not None
            else [],
            rungs=list(_rungs(run)),
            parallel_plans=_parallel_plans(run),
            common_hyperparams=_words({name: value for name, value in common.items() if name not in varying}),
            figures=plots,
            splits=_splits(state, plan),
            sizes=sorted(plan.partitions.values()) if plan else [],
            dataset=plan.dataset if plan else "",
            etl=state.etl_request(plan.dataset) if plan else None,
            located=_locator_table(record),
            schedule=list(schedule_lines(state, run, run.clock.ended or now)),
            actions=_actions(state),
            class_name=class_name,
            schema=SCHEMA_VERSION,
            python=sys.version.split()[0],
            theme_colors=THEME_COLORS,
            policy=plotting.policy(),
            scripts=Markup(plotting.scripts({element: figure for element, (_, figure) in plots.items()})),
            script_bytes=len(plotting.plotly_script().encode()),
        )
    )


# --- content ------------------------------------------------------------------------------------------


def _figures(drawings: Drawings) -> Iterable[tuple[str, str, Figure | None]]:
    """Yield element id, heading and figure."""
    metric = drawings.request.metric
    yield "figure-curves", f"Learning curves of {metric}", drawings.curves()
    yield "figure-pareto", "Pareto front", drawings.pareto()
    yield "figure-hypervolume", "Hypervolume", drawings.hypervolume()
    yield "figure-parallel", "Hyperparameters side by side", drawings.parallel()
    yield "figure-scatter", f"{metric} over each hyperparameter", drawings.scatter()
    yield "figure-heatmap", f"Best {metric} by two hyperparameters", drawings.heatmap()
    yield "figure-importance", "Importance of hyperparameters", drawings.importance()
    yield "figure-schedule", "Schedule", drawings.schedule()


def _models(drawings: Drawings, varying: Sequence[str]) -> _Table:
    rows, metric = drawings.rows, drawings.request.metric
    has_parents = any(row.parent for row in rows)
    origin = ("from",) if has_parents else ()
    names = drawings.request.compared_names[1:]
    columns = ("model", "state", f"best {metric}", *names, "at epoch", "sub-epochs")
    columns = (*columns, *origin, *varying, "redone", "compute, s")
    shown = [
        (
            row.id,
            row.state,
            row.best,
            *(row.metrics.get(name) for name in names),
            row.best_epoch,
            f"{row.progress.done} of {row.progress.total}",
            *((str(row.parent or ""),) if has_parents else ()),
            *(figures.word(row.hyperparams.get(name)) for name in varying),
            row.effort.redone,
            round(row.effort.compute_s, 1),
        )
        for row in rows[:_MAX_MODELS]
    ]
    note = f"the best {_MAX_MODELS:,} of {len(rows):,}" if len(rows) > _MAX_MODELS else ""
    return _Table("Models, best first", columns, shown, note)


def _repeats(run: Run) -> _Table | None:
    """Return the repeated models with their means and ranks; `None` without any."""
    columns = ("rank", "model", f"mean {run.fit_request.metric}", "standard deviation", "seeds", "first seed")
    rows = [
        (each.rank, each.model, each.mean, each.std, f"{len(each.values)} of {each.seeds}", each.value)
        for each in repeat_rows(run)
    ]
    note = "models share a rank if Welch's t-test at 95 % cannot separate them; the first seed is not in the mean"
    return _Table("Repeats with new seeds", columns, rows, note) if rows else None


def _folds(run: Run) -> _Table | None:
    """Return the configurations of a cross-validation with their means and ranks; `None` without any."""
    found = fold_rows(run)
    numbers = range(1, (run.fit_request.folds or 0) + 1)
    columns = (
        *("rank", "configuration", f"mean {run.fit_request.metric}", "standard deviation", "at epoch"),
        *(f"fold {number}" for number in numbers),
    )
    rows = [
        (
            each.rank,
            each.configuration,
            each.mean,
            each.std,
            each.epoch,
            *(each.values or ("",) * len(numbers)),
        )
        for each in found
    ]
    note = (
        "configurations share a rank if the corrected resampled t-test at 95 % cannot separate them: the folds' models "
        "share training rows, so their values are correlated"
    )
    return _Table("Cross-validation", columns, rows, note) if rows else None


def _rungs(run: Run) -> Iterable[_Table]:
    columns = ("model", run.fit_request.metric, "outcome")
    for rung in rungs.rungs(run):
        rows = [(each.model, each.value, each.words) for each in rung.models[:_MAX_MODELS]]
        is_cut = len(rows) < len(rung.models)
        cut = f"; the best {_MAX_MODELS:,} of {len(rung.models):,}" if is_cut else ""
        yield _Table(rung.name, columns, rows, f"{rungs.counts(rung)}{cut}")


def _parallel_plans(run: Run) -> _Table:
    """Return the parallel plans of each model; no rows if every model has only one."""
    columns = (
        "model",
        "parallel plan",
        "devices",
        "sub-epochs",
        "seconds per sub-epoch",
        "trial: seconds per batch",
        "ruled out",
    )
    usages = (
        (model.id, each)
        for model in run.models.values()
        if parallel_plans.has_more_than_one(run, model)
        for each in parallel_plans.describe_plans(run, model)
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
        for name, each in usages
    ]
    note = f"the first {_MAX_MODELS:,} of {len(rows):,}" if len(rows) > _MAX_MODELS else ""
    return _Table("Parallel plans", columns, rows[:_MAX_MODELS], note)


def _tests(drawings: Drawings) -> Iterable[_Table]:
    """Yield a table per test run of models of this fit."""
    for run in figures.tests_of(drawings.state, drawings.run):
        results = figures.tested(run)
        metrics = sorted({name for result in results for name in result.metrics})
        rows = [(r.model, r.epoch, r.rows, *(r.metrics.get(name) for name in metrics)) for r in results]
        assert isinstance(run.request, EvaluateRequest)
        rows_note = figures.other_rows(drawings.state, run)
        notes = (
            figures.averaged(results),
            rows_note,
            "" if run.state is RunState.FINISHED else str(run.state),
        )
        note = "; ".join(part for part in notes if part)
        columns = ("model", "epoch", "rows", *metrics)
        if rows:
            yield _Table(f"{run.id}, on the split {run.request.split}", columns, rows, note)


def _splits(state: ExperimentState, plan: FitPlan | None) -> _Table:
    dataset = state.datasets.get(plan.dataset) if plan else None
    runs = (run for run in state.runs.values() if isinstance(run.plan, EtlPlan))
    etl_runs = [run for run in runs if dataset and run.plan and run.plan.dataset == dataset.id]
    splits = figures.etl_progress(dataset, etl_runs[-1]) if dataset and etl_runs else ()
    columns = ("split", "in", "preprocessed", "failed", "in = preprocessed + failed")
    rows = [
        (s.split, s.rows, s.kept_rows, s.failed, f"{s.rows:,} = {s.kept_rows:,} + {s.failed:,}")
        for s in splits
    ]
    return _Table("Rows of each split", columns, rows)


def _locator_table(record: ExperimentRecord | None) -> _Table:
    splits = record.locators.splits() if record else {}
    rows = [(split, locator.metadata, locator.objects) for split, locator in splits.items()]
    return _Table("Dataset locators", ("split", "metadata", "objects"), rows)


def _actions(state: ExperimentState) -> _Table:
    newest = state.commands[-_MAX_ACTIONS:]
    rows = [
        (_moment(a.time), a.by or "unknown", f"{a.what}{' (too late)' if a.is_late else ''}") for a in newest
    ]
    is_cut = len(newest) < len(state.commands)
    note = f"the newest {_MAX_ACTIONS:,} of {len(state.commands):,}" if is_cut else ""
    return _Table("Commands", ("time", "author", "command"), rows, note)


# --- rendering ----------------------------------------------------------------------------------------


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "shown": _shown,
        "moment": _moment,
        "words": _words,
        "quoted": repr,
        "description": figures.description,
        "data_of": lambda figure, heading: _Table(heading, *figures.table(figure)),
    }
    return environment


def _shown(value: Value) -> str:
    if isinstance(value, float):
        return number(value)
    return f"{value:,}" if isinstance(value, int) else value or ""


def _moment(seconds: float) -> str:
    """Format as ISO 8601; empty for an unknown time."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if seconds > 0 else ""


def _words(hyperparams: Hyperparameters) -> dict[str, str]:
    return {name: figures.word(value) for name, value in hyperparams.items()}
