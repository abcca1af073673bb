"""Compaction of a model's visits. Pure.

Small runs keep all visits. In a run with more than `ARCHIVE_AFTER` sub-epochs, a model keeps its current and previous
epoch; older ones are compacted at the end of an epoch. The state keeps each epoch's sums, and the visits with
checkpoints in demand: the last of each epoch, and the starting point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.tasks import CurvePoint
from cerebro.state.models.committed_sub_epoch import Visit, mean
from cerebro.state.models.model import Model
from cerebro.state.models.positions import steps_of
from cerebro.state.models.sub_epochs import EpochSummary, ParallelPlanUsed, totals_of

ARCHIVE_AFTER = 4096
"""Committed sub-epochs of a run. Not a setting: all readers of a log must compact alike."""


def archive(model: Model, epochs: int, rows: Mapping[int, int], *, keeps_all: bool = False) -> list[Visit]:
    """Compact the visits of a model's first epochs; return its own ones.

    Args:
        epochs: number of epochs, all complete.
        rows: partition -> rows; see `FitPlan.partitions`.
        keeps_all: pin all visits (`Visits`).
    """
    return [
        visit
        for epoch in range(model.archived_epochs + 1, epochs + 1)
        for visit in model.archive(_summary(model, epoch, rows), keeps_all=keeps_all)
    ]


def _summary(model: Model, epoch: int, rows: Mapping[int, int]) -> EpochSummary:
    visits, first = model.epoch_visits(epoch), model.visits_until(epoch - 1)
    means = mean(visits)
    reported = next((visit.reported for visit in visits if visit.reported), "")
    reporting = [visit for visit in visits if reported and visit.reported == reported]
    took = [visit.compute_s or visit.ended - visit.started for visit in visits]
    totals, parallel_plans = totals_of(visits), _parallel_plans(visits)
    return EpochSummary(
        returned=tuple(model.returned_in(epoch).items()),
        names=tuple(means),
        values=tuple(means.values()),
        seconds=totals.seconds,
        compute_s=totals.compute_s,
        rows=totals.rows,
        rows_until=totals.rows + model.summaries.rows_until(epoch - 1),
        trained_rows=sum(visit.rows - visit.resumed_rows for visit in visits),
        took_s=sum(took),
        steps=sum(
            steps_of(model, sub_epoch, visit, rows) for sub_epoch, visit in enumerate(visits, start=first)
        ),
        used=tuple(used.parallel_plan for used in parallel_plans),
        used_sub_epochs=tuple(used.sub_epochs for used in parallel_plans),
        used_s=tuple(used.seconds for used in parallel_plans),
        peak_bytes=max(visit.peak_bytes for visit in visits),
        peak_gpu_bytes=max(visit.peak_gpu_bytes for visit in visits),
        reported=reported,
        reports=_point([point for visit in reporting for point in visit.points], sum(took)),
        has_diverged=bool(reporting) and reporting[-1].has_diverged,
        shown_at=visits[0].ended,
    )


def _parallel_plans(visits: Sequence[Visit]) -> tuple[ParallelPlanUsed, ...]:
    found: dict[str, tuple[ParallelPlan | None, list[float]]] = {}
    for visit in visits:
        found.setdefault(visit.parallel_plan.label if visit.parallel_plan else "", (visit.parallel_plan, []))[
            1
        ].append(visit.seconds)
    return tuple(
        ParallelPlanUsed(parallel_plan, len(seconds), sum(seconds))
        for parallel_plan, seconds in found.values()
    )


def _point(points: Sequence[CurvePoint], took_s: float) -> tuple[float, ...]:
    number = sum(point.number for point in points)
    if not number:
        return ()
    return took_s / 2, sum(point.mean * point.number for point in points) / number, number
