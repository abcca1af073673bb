"""Figures of a run, shared by the page, notebooks, files and reports.

`cerebro.client.reporting.drawings`, `cerebro.client.results` and the figure modules of `dispatcher` call it. Each
module builds one figure: data classes for its values, functions that compute them from a run's state, and the
drawing. `models`, `hyperparams` and `measurements` serve several figures. A builder is a pure function. It returns a
dictionary for ``Plotly.newPlot(element, figure.data, figure.layout, CONFIG)`` and
``plotly.graph_objects.Figure(figure)``, and needs neither plotly nor numpy, which keeps the page's process small.

Text of users is escaped, because Plotly interprets some HTML. ``layout.meta`` has ``figure`` (the builder's name),
``description`` (a text for screen readers) and ``table`` (the data, see `Table`). ``customdata`` of a point starts
with the model's id, for sub-epochs followed by epoch, partition, attempt and task key. A line's ``meta.model`` is its
model.
"""

from cerebro.figures.curves import Axis, Curve, CurveSplit, curves, epoch_curves, shown_split
from cerebro.figures.etl import SplitProgress, etl, etl_progress, partition_rows
from cerebro.figures.frame import CONFIG, Figure, Table, description, table
from cerebro.figures.heatmap import heatmap
from cerebro.figures.hyperparams import varying, word
from cerebro.figures.importance import Importance, importance, importance_of
from cerebro.figures.measurements import Measured, averaged, other_rows, tested, tests_of
from cerebro.figures.models import ModelSummary, summaries, summary, values_at
from cerebro.figures.palette import THEME_COLORS, Theme, colour, in_dark
from cerebro.figures.parallel import parallel
from cerebro.figures.scatter import scatter
from cerebro.figures.schedule import (
    OTHER_TASK_KINDS,
    Absence,
    Landmarks,
    Outcome,
    PlannedSpan,
    Span,
    landmarks,
    other_tasks,
    planned,
    rows_with,
    schedule,
    spans,
    spans_of,
    within,
    worker_rows,
)
from cerebro.figures.search import (
    Observation,
    ProgressAxis,
    best_so_far,
    contour,
    hypervolume,
    observations,
    pareto,
    pareto_axes,
    rungs,
)
from cerebro.figures.static_svg import static_svg

__all__ = [
    "CONFIG",
    "OTHER_TASK_KINDS",
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
    "Observation",
    "Outcome",
    "PlannedSpan",
    "ProgressAxis",
    "Span",
    "SplitProgress",
    "Table",
    "Theme",
    "averaged",
    "best_so_far",
    "colour",
    "contour",
    "curves",
    "description",
    "epoch_curves",
    "etl",
    "etl_progress",
    "heatmap",
    "hypervolume",
    "importance",
    "importance_of",
    "in_dark",
    "landmarks",
    "observations",
    "other_rows",
    "other_tasks",
    "parallel",
    "pareto",
    "pareto_axes",
    "partition_rows",
    "planned",
    "rows_with",
    "rungs",
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
