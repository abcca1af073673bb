"""The runs of an experiment, and what test runs found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cerebro.contract.runs import EvaluatePlan
from cerebro.state import Run, breaks, wording
from dispatcher.followed import Followed


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
    """What a test run returned for one model: means over partitions, weighted by rows."""

    run: str
    model: str
    epoch: int
    partitions_done: int
    partitions: int
    metrics: dict[str, float]


def run_row(followed: Followed, run: Run) -> RunRow:
    """One run."""
    done, total = followed.progress(run)
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
        note=run.error or run.reason,
        is_open=run.is_open,
    )


def scores(run: Run) -> Iterator[ScoreRow]:
    """What a test run found so far; nothing of any other run."""
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
            metrics={
                name: sum(result.metrics[name] * result.rows for result in results) / rows
                for name in sorted(names)
            },
        )
