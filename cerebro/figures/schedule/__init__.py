"""The schedule of a fit run: what ran and what is planned, and the Gantt chart of it."""

from cerebro.figures.schedule.drawing import schedule
from cerebro.figures.schedule.planned import PlannedSpan, planned
from cerebro.figures.schedule.spans import Landmarks, Outcome, Span, landmarks, remade, spans, worker_rows

__all__ = [
    "Landmarks",
    "Outcome",
    "PlannedSpan",
    "Span",
    "landmarks",
    "planned",
    "remade",
    "schedule",
    "spans",
    "worker_rows",
]
