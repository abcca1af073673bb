"""Rows of runs and of test results, for the header, the tabs Overview and History, and the list. Pure."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

from cerebro.contract.runs import EvaluatePlan, EvaluateRequest
from cerebro.figures import Measured, averaged, other_rows
from cerebro.state import Run, RunState, waiting_for
from cerebro.state.reports import state_words
from cerebro.state.reports.throughput import TimeLeft
from dispatcher.read_models.read_model import ReadModel

MAX_SCORES = 20
"""Maximum number of results to list of one test run."""


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """One run. Times are seconds since the epoch, `None` when unknown.

    `begun` is `started` plus the run's breaks (`cerebro.state.runs.breaks`), so `ended - begun` is its working time.
    """

    id: str
    kind: str
    state: str
    done: int
    total: int
    author: str
    requested: float
    started: float | None
    begun: float | None
    ended: float | None
    note: str
    is_open: bool


@dataclass(frozen=True, kw_only=True)
class ShownRun:
    """Progress of the run that represents an experiment (`cerebro.state.reports.state_words.shown_run`).

    Attributes:
        id, kind: an empty text for an experiment without runs.
        done, total: committed and total tasks; a total of 0 means unknown.
        time_left: estimated remaining time of the run in progress, if known.
    """

    id: str = ""
    kind: str = ""
    done: int = 0
    total: int = 0
    time_left: TimeLeft | None = None


@dataclass(frozen=True, kw_only=True)
class ScoreRow:
    """Result of a test run for one model.

    Attributes:
        note: how metrics were combined, and the ETL run of the rows if the models were trained on another data set.
    """

    run: str
    model: str
    epoch: int
    partitions_done: int
    partitions: int
    metrics: dict[str, float]
    note: str = ""


def run_row(read_model: ReadModel, run: Run) -> RunRow:
    """Return the row of a run."""
    done, total = read_model.progress(run)
    is_queued = run.state is RunState.QUEUED
    return RunRow(
        id=run.id,
        kind=run.kind,
        state=state_words.run(run),
        done=done,
        total=total,
        author=run.author,
        requested=run.clock.requested,
        started=run.clock.started or None,
        begun=run.clock.begun or None,
        ended=run.clock.ended or None,
        note=run.failures.error
        or run.pause.reason
        or (waiting_for(read_model.state, run) if is_queued else ""),
        is_open=run.is_open,
    )


def shown_run(read_model: ReadModel, now: float) -> ShownRun:
    """Return the progress of an experiment's shown run at `now` (seconds since the epoch)."""
    run = state_words.shown_run(read_model.state)
    if run is None:
        return ShownRun()
    done, total = read_model.progress(run)
    time_left = read_model.throughput(now).time_left
    return ShownRun(id=run.id, kind=run.kind, done=done, total=total, time_left=time_left)


def best_scores(read_model: ReadModel, run: Run) -> list[ScoreRow]:
    """Return the current best results of a test run, at most `MAX_SCORES`; an empty list for other runs."""
    if (
        run.kind != "test"
        or not isinstance(run.plan, EvaluatePlan)
        or not isinstance(run.request, EvaluateRequest)
    ):
        return []
    fit = read_model.state.runs[run.request.fit].fit_request
    rows_note = other_rows(read_model.state, run)
    of_one = len(run.plan.partitions) if run.plan.is_whole else 1

    def rank(one: Measured) -> tuple[bool, float]:
        value = one.metrics.get(fit.metric, math.nan)
        return math.isnan(value), -value if fit.mode == "max" else value

    return [
        ScoreRow(
            run=run.id,
            model=one.model,
            epoch=one.epoch,
            partitions_done=one.done * of_one,
            partitions=one.parts * of_one,
            metrics=dict(one.metrics),
            note="; ".join(text for text in (averaged([one]), rows_note) if text),
        )
        for one in heapq.nsmallest(MAX_SCORES, read_model.tested(run).results(), key=rank)
    ]
