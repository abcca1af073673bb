"""The runs of an experiment, and what test runs found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cerebro.contract.runs import EvaluatePlan
from cerebro.figures import averaged, tested
from cerebro.state import Run, RunState, breaks, waiting_for, wording
from dispatcher.reading.read_model import ReadModel


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """One run; times are seconds since the epoch, None while unknown.

    `begun` is `started`, later by the run's breaks (`cerebro.state.breaks`): from then to the end is what it took.
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
class ScoreRow:
    """What a test run returned for one model.

    Attributes:
        note: empty if user code saw the whole split at once; else what the metrics are.
    """

    run: str
    model: str
    epoch: int
    partitions_done: int
    partitions: int
    metrics: dict[str, float]
    note: str = ""


def run_row(read_model: ReadModel, run: Run) -> RunRow:
    """One run."""
    done, total = read_model.progress(run)
    is_queued = run.state is RunState.QUEUED
    return RunRow(
        id=run.id,
        kind=run.kind,
        state=wording.run(run),
        done=done,
        total=total,
        author=run.author,
        requested=run.requested,
        started=run.started or None,
        begun=breaks.begun(run) or None,
        ended=run.ended or None,
        note=run.error or run.reason or (waiting_for(read_model.state, run) if is_queued else ""),
        is_open=run.is_open,
    )


def scores(run: Run) -> Iterator[ScoreRow]:
    """What a test run found so far; nothing of any other run."""
    if run.kind != "test" or not isinstance(run.plan, EvaluatePlan):
        return
    of_one = len(run.plan.partitions) if run.plan.is_whole else 1
    for one in tested(run):
        yield ScoreRow(
            run=run.id,
            model=one.model,
            epoch=one.epoch,
            partitions_done=one.done * of_one,
            partitions=one.parts * of_one,
            metrics=dict(one.metrics),
            note=averaged([one]),
        )
