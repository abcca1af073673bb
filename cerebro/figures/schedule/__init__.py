"""The schedule of a fit run: what ran and what is planned, and the Gantt chart of it."""

from cerebro.figures.schedule.drawing import schedule
from cerebro.figures.schedule.planned import PlannedSpan, planned
from cerebro.figures.schedule.spans import (
    Absence,
    Landmarks,
    Outcome,
    Span,
    beside_units,
    landmarks,
    spans,
    worker_rows,
)

__all__ = [
    "Absence",
    "Landmarks",
    "Outcome",
    "PlannedSpan",
    "Span",
    "beside_units",
    "landmarks",
    "planned",
    "schedule",
    "spans",
    "worker_rows",
]
