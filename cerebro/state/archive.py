"""Which visits of a model are archived, and what stands for them. Pure.

Small runs keep all. Of a run with more units than `ARCHIVE_AFTER` a model keeps its present epoch and the one before;
what is older is archived when an epoch ends. Of it stay the sums of each epoch, and the visits whose checkpoints may be
asked for: the last of each epoch, and the one that it began with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cerebro.contract.tasks import CurvePoint
from cerebro.contract.ways import Way
from cerebro.state.archived import EpochSummary, WayUsed, totals_of
from cerebro.state.models import Model
from cerebro.state.positions import steps_of
from cerebro.state.visits import Visit, mean

ARCHIVE_AFTER = 4096
"""Committed units of a run. It is no setting: all who read a log are to keep the same of it."""


def archive(model: Model, epochs: int, rows: Mapping[int, int], *, keeps_all: bool = False) -> list[Visit]:
    """Keep the visits of a model's first epochs no longer; those of them that are its own.

    Args:
        epochs: so many, all complete.
        rows: partition -> its rows; see `FitPlan.partitions`.
        keeps_all: all are pinned (`Visits`).
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
    totals, ways = totals_of(visits), _ways(visits)
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
        steps=sum(steps_of(model, unit, visit, rows) for unit, visit in enumerate(visits, start=first)),
        used=tuple(used.way for used in ways),
        used_units=tuple(used.units for used in ways),
        used_s=tuple(used.seconds for used in ways),
        peak_bytes=max(visit.peak_bytes for visit in visits),
        peak_gpu_bytes=max(visit.peak_gpu_bytes for visit in visits),
        reported=reported,
        reports=_point([point for visit in reporting for point in visit.points], sum(took)),
        has_diverged=bool(reporting) and reporting[-1].has_diverged,
        shown_at=visits[0].ended,
    )


def _ways(visits: Sequence[Visit]) -> tuple[WayUsed, ...]:
    found: dict[str, tuple[Way | None, list[float]]] = {}
    for visit in visits:
        found.setdefault(visit.way.label if visit.way else "", (visit.way, []))[1].append(visit.seconds)
    return tuple(WayUsed(way, len(seconds), sum(seconds)) for way, seconds in found.values())


def _point(points: Sequence[CurvePoint], took_s: float) -> tuple[float, ...]:
    number = sum(point.number for point in points)
    if not number:
        return ()
    return took_s / 2, sum(point.mean * point.number for point in points) / number, number
