"""The schedule of a fit run: what ran and what is planned, and the Gantt chart of it."""

from cerebro.figures.schedule.drawing import schedule
from cerebro.figures.schedule.planned import PlannedSpan, planned
from cerebro.figures.schedule.spans import (
    BESIDE,
    Absence,
    Landmarks,
    Outcome,
    Span,
    beside_sub_epochs,
    landmarks,
    rows_with,
    spans,
    spans_of,
    worker_rows,
)
from cerebro.figures.schedule.windows import within

__all__ = [
    "BESIDE",
    "Absence",
    "Landmarks",
    "Outcome",
    "PlannedSpan",
    "Span",
    "beside_sub_epochs",
    "landmarks",
    "planned",
    "rows_with",
    "schedule",
    "spans",
    "spans_of",
    "within",
    "worker_rows",
]
