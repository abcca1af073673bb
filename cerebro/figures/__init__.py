"""Figures of a run: one set of builders for the page, notebooks, files and reports, so that they show the same.

One module is one figure: what it shows of a run, and its drawing. What several figures and tables show has a module
of its own (`models`, `hyperparams`, `tested`). Each builder is a pure function: rows, curves or spans in, a plain
dictionary out that
``Plotly.newPlot(element, figure.data, figure.layout, CONFIG)`` and ``plotly.graph_objects.Figure(figure)`` take. It
needs neither the plotly package nor numpy, so the page's process stays small.

In each figure, text of users is escaped (Plotly reads some HTML in text); ``layout.meta`` has ``figure`` (the builder),
``description`` (words for those who do not see it) and ``table`` (its data, see `Table`). Points have ``customdata``:
the model's id first, of sub-epochs also epoch, partition, attempt and task key. Lines of one model have it in
``meta.model``.
"""

from cerebro.figures.curves import Axis, Curve, CurveSplit, curves, epoch_curves, shown_split
from cerebro.figures.etl import SplitProgress, etl, etl_progress
from cerebro.figures.frame import CONFIG, Figure, Table, description, table
from cerebro.figures.heatmap import heatmap
from cerebro.figures.hyperparams import varying, word
from cerebro.figures.importance import Importance, Share, importance, importance_of
from cerebro.figures.models import ModelSummary, summaries, summary, values_at
from cerebro.figures.palette import THEME_COLORS, Theme, colour, dash, in_dark
from cerebro.figures.parallel import parallel
from cerebro.figures.scatter import scatter
from cerebro.figures.schedule import (
    BESIDE,
    Absence,
    Landmarks,
    Outcome,
    PlannedSpan,
    Span,
    beside_sub_epochs,
    landmarks,
    planned,
    rows_with,
    schedule,
    spans,
    spans_of,
    within,
    worker_rows,
)
from cerebro.figures.static_svg import static_svg
from cerebro.figures.tested import Measured, averaged, tested, tests_of

__all__ = [
    "BESIDE",
    "CONFIG",
    "THEME_COLORS",
    "Absence",
    "Axis",
    "Curve",
    "CurveSplit",
    "Figure",
    "Importance",
    "Landmarks",
    "Measured",
    "ModelSummary",
    "Outcome",
    "PlannedSpan",
    "Share",
    "Span",
    "SplitProgress",
    "Table",
    "Theme",
    "averaged",
    "beside_sub_epochs",
    "colour",
    "curves",
    "dash",
    "description",
    "epoch_curves",
    "etl",
    "etl_progress",
    "heatmap",
    "importance",
    "importance_of",
    "in_dark",
    "landmarks",
    "parallel",
    "planned",
    "rows_with",
    "scatter",
    "schedule",
    "shown_split",
    "spans",
    "spans_of",
    "static_svg",
    "summaries",
    "summary",
    "table",
    "tested",
    "tests_of",
    "values_at",
    "varying",
    "within",
    "word",
    "worker_rows",
]
