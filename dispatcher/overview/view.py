"""The first tab of an experiment: best model, failures, running tasks, data and workers. Pure.

The tab and the read API call `overview` under the read model's lock. It combines sections that other folders compute,
and lists at most 100 tasks and 20 models per group of failures.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from cerebro.contract.records import Hyperparameters, WorkerStatus
from cerebro.contract.runs import EvaluatePlan
from cerebro.contract.tasks.failures import Failure
from cerebro.contract.texts import first_line
from cerebro.figures.models import ModelSummary, failure_groups
from cerebro.state import ExperimentState, Run, TaskState
from cerebro.state.reports import state_words
from cerebro.state.reports.throughput import Throughput, TimeLeft
from cerebro.state.runs import rungs
from cerebro.state.runs.goals import clock, forecast_lines
from cerebro.state.tasks import verification_texts
from dispatcher.data.view import SplitRow, newest_dataset, split_rows
from dispatcher.read_models.read_model import ReadModel
from dispatcher.tabs.models import Best, FailedAttempt, failed_attempts, found_best, shown_best
from dispatcher.tabs.runs import RunRow, ScoreRow, best_scores, run_row
from dispatcher.tabs.workers import WorkerRow, device_count, worker_rows

_MAX_NAMED = 20
"""Maximum number of models to name in a group of failures."""
_MAX_RUNNING = 100
"""Maximum number of tasks to list as running or next."""


@dataclass(frozen=True, kw_only=True)
class Note:
    """Warning about a lost worker. `reported`: time of its last report, seconds since the epoch."""

    text: str
    reported: float | None


@dataclass(frozen=True, kw_only=True)
class FitSummary:
    """Summary of a fit run.

    Attributes:
        counts: number of models per state, largest first.
        best: best model of all fits with the same metric and data set; the `best_` fields describe it.
    """

    run: str
    metric: str
    mode: str
    is_validated: bool
    models: int
    counts: tuple[tuple[str, int], ...]
    best: Best | None
    best_hyperparameters: Hyperparameters
    best_checkpoint: str
    """Path on the checkpoint volume, or an empty text."""
    best_code: str
    """Python code that loads the checkpoint, or an empty text."""
    restarts: int
    """Sub-epochs that were trained again after an attempt that did not commit."""


@dataclass(frozen=True, kw_only=True)
class FailureGroup:
    """Models that failed for the same reason.

    Attributes:
        models: the first of `count` ids.
        failure: error of the first model.
        attempt: attempt of the first model; None when it never started.
    """

    kind: str
    message: str
    count: int
    models: tuple[str, ...]
    failure: Failure
    attempt: FailedAttempt | None


@dataclass(frozen=True, kw_only=True)
class RunningTask:
    """A task with an open attempt.

    Attributes:
        devices: devices of its worker in words; an empty text for workers with one device.
        rows, total_rows: progress at the last report; a total of 0 means unknown.
        values: live metrics of the last report.
    """

    key: str
    what: str
    worker: str
    devices: str
    model: str
    attempt: int
    started: float | None
    rows: int
    total_rows: int
    values: dict[str, float]
    is_next: bool
    """True if it waits in the worker's inbox."""


@dataclass(frozen=True, kw_only=True)
class Overview:
    """Content of the tab. `notes`: warnings in addition to the header's."""

    notes: tuple[Note, ...]
    runs: tuple[RunRow, ...]
    fit: FitSummary | None
    failures: tuple[FailureGroup, ...]
    running: tuple[RunningTask, ...]
    pace: Throughput
    splits: tuple[SplitRow, ...]
    scores: tuple[ScoreRow, ...]
    more_scores: int
    """Number of results of tests that are not in `scores`."""
    workers: tuple[WorkerRow, ...]
    search: tuple[str, str] | None = None
    """Search procedure of the fit and its progress, in words."""
    forecast: tuple[str, tuple[str, ...]] | None = None
    """Expected end of the fit (for an ended fit, the first forecast) and further lines."""
    verifications: tuple[str, ...] = ()
    """Results of verification, in words: a summary, then each mismatch."""


def overview(
    read_model: ReadModel, *, now: float, statuses: tuple[WorkerStatus, ...] = (), fit: str = ""
) -> Overview:
    """Build the tab at `now` (seconds since the epoch). `fit`: id of a fit run, by default the newest."""
    state, run = read_model.state, read_model.fit(fit)
    dataset = newest_dataset(read_model)
    workers = tuple(worker_rows(state, statuses, now))
    open_runs = state.open_runs()
    scores = tuple(row for each in state.runs.values() for row in best_scores(read_model, each))
    return Overview(
        notes=tuple(_notes(workers)) if open_runs else (),
        runs=tuple(run_row(read_model, each) for each in reversed(state.runs.values())),
        fit=_fit(read_model, run) if run else None,
        failures=tuple(_failures(run, read_model.table(run).failed())) if run else (),
        running=tuple(_running(read_model, open_runs)),
        pace=read_model.throughput(now),
        splits=tuple(replace(row, parts=()) for row in split_rows(read_model, dataset, now))
        if dataset
        else (),
        scores=scores,
        more_scores=_num_tested(state) - len(scores),
        workers=workers,
        search=(rungs.procedure(run), rungs.progress(run, read_model.table(run).trained_epochs()))
        if run and run.search
        else None,
        forecast=_forecast(run, read_model.throughput(now, run).time_left, now)
        if run and run.scheduling.forecasts
        else None,
        verifications=tuple(verification_texts.lines(run.verifications)) if run else (),
    )


def _num_tested(state: ExperimentState) -> int:
    plans = (run.plan for run in state.runs.values() if run.kind == "test")
    return sum(len(plan.models) for plan in plans if isinstance(plan, EvaluatePlan))


def _forecast(run: Run, time_left: TimeLeft | None, now: float) -> tuple[str, tuple[str, ...]]:
    first = run.scheduling.forecasts[0]
    expected = time_left.ends_at if run.is_open and time_left else first.time + first.end.p50_s
    return clock(expected, now), tuple(forecast_lines(run, now))


def _fit(read_model: ReadModel, run: Run) -> FitSummary:
    found = found_best(read_model, run)
    checkpoint = found.checkpoint if found else None
    return FitSummary(
        run=run.id,
        metric=run.fit_request.metric,
        mode=run.fit_request.mode,
        is_validated=run.is_validated,
        models=len(run.models),
        counts=read_model.table(run).counts(),
        best=shown_best(found),
        best_hyperparameters=found.model.hyperparams_shown(found.epoch) if found else {},
        best_checkpoint=checkpoint.name if checkpoint else "",
        best_code=_code(read_model.record.name, found.run.id) if found and checkpoint else "",
        restarts=sum(model.effort.repeated_attempts for model in run.models.values()),
    )


def _code(experiment: str, run: str) -> str:
    best = f'Experiment.attach("{experiment}").result("{run}").best'
    return f"from cerebro import Experiment\n\nmodules = {best}.modules()"


def _failures(run: Run, rows: list[ModelSummary]) -> list[FailureGroup]:
    groups = failure_groups(rows)
    attempts = failed_attempts(run, [failed[0].id for _, failed in groups])
    return [
        FailureGroup(
            kind=failure.kind.value.replace("_", " "),
            message=first_line(failure.message),
            count=len(failed),
            models=tuple(row.id for row in failed[:_MAX_NAMED]),
            failure=failure,
            attempt=attempts.get(failed[0].id),
        )
        for failure, failed in groups
    ]


def _running(read_model: ReadModel, runs: list[Run]) -> Iterator[RunningTask]:
    """Yield running tasks, then tasks in inboxes, each run by run."""
    found = [task for run in runs for task in run.tasks.open.values()]
    tasks = sorted(found, key=lambda task: task.state is not TaskState.RUNNING)
    for task in tasks[:_MAX_RUNNING]:
        point = read_model.live.newest.get(str(task.key))
        newest = task.attempts[-1]
        known = point if point and point.attempt == newest.number else None
        yield RunningTask(
            key=str(task.key),
            what=state_words.by_parallel_plan(task),
            worker=newest.worker,
            devices=state_words.on_devices(newest.devices, device_count(read_model.state, newest.worker)),
            model=task.key.model or "",
            attempt=newest.number,
            started=newest.started or None,
            rows=known.rows if known else 0,
            total_rows=known.total_rows if known else 0,
            values=dict(known.values) if known else {},
            is_next=task.state is not TaskState.RUNNING,
        )


def _notes(workers: tuple[WorkerRow, ...]) -> Iterator[Note]:
    for row in workers:
        if row.state == "lost":
            why = f" ({row.lost})" if row.lost else ""
            text = f"{row.name} is lost{why}: tasks on partitions that only it holds wait until it returns."
            yield Note(text=text, reported=row.reported)
