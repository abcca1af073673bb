"""Compaction of a model's sub-epochs. Pure.

Small runs keep all sub-epochs. In a run with more than `COMPACT_AFTER` of them, a model keeps its current and previous
epoch; older ones are compacted at the end of an epoch. The state keeps each epoch's sums, and the sub-epochs with
checkpoints in demand: the last of each epoch, and the starting point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.tasks.results import CurvePoint
from cerebro.state.models.completed_sub_epoch import CompletedSubEpoch
from cerebro.state.models.model import Model
from cerebro.state.models.positions import steps_of
from cerebro.state.models.sub_epochs import EpochSummary, ParallelPlanUsed, mean, totals_of

COMPACT_AFTER = 4096
"""Committed sub-epochs of a run. Not a setting: all readers of a log must compact alike."""


def compact(
    model: Model, epochs: int, rows: Mapping[int, int], *, keeps_all: bool = False
) -> list[CompletedSubEpoch]:
    """Compact the sub-epochs of a model's first epochs; return its own ones.

    Args:
        epochs: number of epochs, all complete.
        rows: partition -> rows; see `FitPlan.partitions`.
        keeps_all: pin all sub-epochs (`CompletedSubEpochs`).
    """
    return [
        sub_epoch
        for epoch in range(model.compacted_epochs + 1, epochs + 1)
        for sub_epoch in model.compact(_summary(model, epoch, rows), keeps_all=keeps_all)
    ]


def _summary(model: Model, epoch: int, rows: Mapping[int, int]) -> EpochSummary:
    sub_epochs, first = model.epoch_sub_epochs(epoch), model.sub_epochs_until(epoch - 1)
    means = mean(sub_epochs)
    reported = next((completed.curve.name for completed in sub_epochs if completed.curve.name), "")
    reporting = [completed for completed in sub_epochs if reported and completed.curve.name == reported]
    took = [completed.timings.compute_s or completed.ended - completed.started for completed in sub_epochs]
    totals, parallel_plans = totals_of(sub_epochs), _parallel_plans(sub_epochs)
    return EpochSummary(
        returned=tuple(model.returned_in(epoch).items()),
        names=tuple(means),
        values=tuple(means.values()),
        seconds=totals.seconds,
        compute_s=totals.compute_s,
        rows=totals.rows,
        rows_until=totals.rows + model.summaries.rows_until(epoch - 1),
        trained_rows=sum(completed.rows - completed.resumed_rows for completed in sub_epochs),
        took_s=sum(took),
        steps=sum(
            steps_of(model, sub_epoch, completed, rows)
            for sub_epoch, completed in enumerate(sub_epochs, start=first)
        ),
        used=tuple(used.parallel_plan for used in parallel_plans),
        used_sub_epochs=tuple(used.sub_epochs for used in parallel_plans),
        used_s=tuple(used.seconds for used in parallel_plans),
        peak_bytes=max(completed.own_peaks[0] for completed in sub_epochs),
        peak_gpu_bytes=max(completed.own_peaks[1] for completed in sub_epochs),
        reported=reported,
        reports=_point([point for completed in reporting for point in completed.curve.points], sum(took)),
        has_diverged=bool(reporting) and reporting[-1].curve.has_diverged,
        shown_at=sub_epochs[0].ended,
    )


def _parallel_plans(sub_epochs: Sequence[CompletedSubEpoch]) -> tuple[ParallelPlanUsed, ...]:
    found: dict[str, tuple[ParallelPlan | None, list[float]]] = {}
    for sub_epoch in sub_epochs:
        found.setdefault(
            sub_epoch.parallel_plan.label if sub_epoch.parallel_plan else "", (sub_epoch.parallel_plan, [])
        )[1].append(sub_epoch.device_s)
    return tuple(
        ParallelPlanUsed(parallel_plan, len(seconds), sum(seconds))
        for parallel_plan, seconds in found.values()
    )


def _point(points: Sequence[CurvePoint], took_s: float) -> tuple[float, ...]:
    number = sum(point.number for point in points)
    if not number:
        return ()
    return took_s / 2, sum(point.mean * point.number for point in points) / number, number
