"""One experiment as its page shows it: runs, the newest fit's models and schedule, data, scores, workers. Pure: state
in, rows out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cerebro.contract.records import ExperimentRecord, WorkerStatus
from cerebro.contract.runs import EvaluatePlan
from cerebro.state import Dataset, ExperimentState, Run, RunState, wording
from dispatcher.crew import WorkerRow, worker_rows
from dispatcher.leaderboard import FitView, fit_view
from dispatcher.listing import newest_fit
from dispatcher.timetable import ScheduleView, schedule_view


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """One run; times are seconds since the epoch, None while unknown."""

    id: str
    state: str
    done: int
    total: int
    author: str
    requested: float
    started: float | None
    ended: float | None
    note: str
    is_open: bool

    def duration_s(self, now: float) -> float | None:
        """From start to end, or to now."""
        return (self.ended or now) - self.started if self.started else None


@dataclass(frozen=True, kw_only=True)
class SplitRow:
    """How far one split is preprocessed; rows in = rows + failed once it is done."""

    split: str
    partitions_done: int
    partitions: int
    rows_in: int
    rows: int
    failed: int


@dataclass(frozen=True, kw_only=True)
class ScoreRow:
    """What a test run returned for one model: means over partitions, weighted by rows."""

    run: str
    model: str
    epoch: int
    partitions_done: int
    partitions: int
    metrics: tuple[tuple[str, float], ...]


@dataclass(frozen=True, kw_only=True)
class ExperimentView:
    """Everything on an experiment's page."""

    record: ExperimentRecord
    state: str
    seq: int
    is_complete: bool
    shown: RunRow | None
    runs: tuple[RunRow, ...]
    fit: FitView | None
    schedule: ScheduleView | None
    splits: tuple[SplitRow, ...]
    scores: tuple[ScoreRow, ...]
    workers: tuple[WorkerRow, ...]
    notes: tuple[str, ...]

    @property
    def is_running(self) -> bool:
        """Whether the page may change by itself soon."""
        return self.state in wording.IN_PROGRESS or not self.is_complete


def view(
    state: ExperimentState,
    is_complete: bool,
    *,
    record: ExperimentRecord,
    statuses: tuple[WorkerStatus, ...],
    now: float,
    fit: str = "",
    page: int = 1,
) -> ExperimentView:
    """The page of `state` at `now` (seconds since the epoch); `fit` chooses a fit run (default: the newest) and `page`
    its models, from 1."""
    chosen = state.runs.get(fit)
    run = chosen if chosen and chosen.models else newest_fit(state)
    shown = wording.shown_run(state)
    dataset = next(reversed(state.datasets.values()), None)
    workers = tuple(worker_rows(state, statuses))
    return ExperimentView(
        record=record,
        state=wording.experiment(state),
        seq=state.seq,
        is_complete=is_complete,
        shown=_run(shown) if shown else None,
        runs=tuple(_run(each) for each in reversed(state.runs.values())),
        fit=fit_view(run, page) if run else None,
        schedule=schedule_view(state, run, now) if run else None,
        splits=tuple(_splits(dataset)) if dataset else (),
        scores=tuple(row for each in state.runs.values() for row in _scores(each)),
        workers=workers,
        notes=tuple(_notes(state, workers)),
    )


def _run(run: Run) -> RunRow:
    done, total = run.progress()
    return RunRow(
        id=run.id,
        state=wording.run(run),
        done=done,
        total=total,
        author=run.author,
        requested=run.requested,
        started=run.started or None,
        ended=run.ended or None,
        note=run.error or run.reason,
        is_open=run.is_open,
    )


# --- data and scores ----------------------------------------------------------------------------


def _splits(dataset: Dataset) -> Iterable[SplitRow]:
    for split, parts in dataset.plan.splits.items():
        keys = [(split, part.partition) for part in parts]
        yield SplitRow(
            split=split,
            partitions_done=sum(key in dataset.rows for key in keys),
            partitions=len(parts),
            rows_in=sum(part.rows for part in parts),
            rows=sum(dataset.rows.get(key, 0) for key in keys),
            failed=sum(dataset.failed_rows.get(key, 0) for key in keys),
        )


def _scores(run: Run) -> Iterable[ScoreRow]:
    if run.kind != "test" or not isinstance(run.plan, EvaluatePlan):
        return
    for model, epoch in run.plan.models.items():
        tasks = [task for task in run.tasks.values() if task.key.model == model]
        results = [task.result for task in tasks if task.result is not None]
        rows = sum(result.rows for result in results) or 1
        names = set.intersection(*(set(result.metrics) for result in results)) if results else set()
        yield ScoreRow(
            run=run.id,
            model=model,
            epoch=epoch,
            partitions_done=len(results),
            partitions=len(tasks),
            metrics=tuple(
                (name, sum(result.metrics[name] * result.rows for result in results) / rows)
                for name in sorted(names)
            ),
        )


def _notes(state: ExperimentState, workers: tuple[WorkerRow, ...]) -> Iterable[str]:
    """What a person should know before anything else."""
    run = state.active_run()
    if run is None:
        return
    if run.state is RunState.PAUSED:
        yield f"{run.id} is paused: {run.reason or 'no reason was given'}."
    if run.state is RunState.QUEUED:
        yield f"{run.id} waits for the controller to plan it, or for other experiments' runs before it."
    if run.state is RunState.RUNNING and not any(row.state in ("running", "idle") for row in workers):
        yield f"No worker answers, so {run.id} waits: see `cerebro status`; `cerebro up` starts workers."
    for row in workers:
        if row.state == "lost":
            yield f"{row.name} is lost ({row.doing}): what only it holds waits for its return."
        elif row.state == "silent":
            yield f"{row.name} has been silent for {row.silent_s:.0f} s."
