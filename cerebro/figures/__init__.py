"""Figures of a run: one set of builders for the page, notebooks, files and reports, so that they show the same.

Each builder is a pure function: rows, curves or spans of `cerebro.analysis` in, a plain dictionary out that
``Plotly.newPlot(element, figure.data, figure.layout, CONFIG)`` and ``plotly.graph_objects.Figure(figure)`` take. It
needs neither the plotly package nor numpy, so the page's process stays small.

In each figure, text of users is escaped (Plotly reads some HTML in text); ``layout.meta`` has ``figure`` (the builder),
``description`` (words for those who do not see it) and ``table`` (its data, see `Table`). Points have ``customdata``:
the model's id first, of units also epoch, partition, attempt and task key. Lines of one model have it in
``meta.model``.
"""

from cerebro.figures.curves import curves
from cerebro.figures.etl import etl
from cerebro.figures.frame import CONFIG, Figure, Table, description, table
from cerebro.figures.heatmap import heatmap
from cerebro.figures.importance import importance
from cerebro.figures.palette import LOOKS, Theme, colour, dash, in_dark, is_named
from cerebro.figures.parallel import parallel
from cerebro.figures.scatter import scatter
from cerebro.figures.schedule import schedule
from cerebro.figures.still import still
from cerebro.figures.utilisation import utilisation

__all__ = [
    "CONFIG",
    "LOOKS",
    "Figure",
    "Table",
    "Theme",
    "colour",
    "curves",
    "dash",
    "description",
    "etl",
    "heatmap",
    "importance",
    "in_dark",
    "is_named",
    "parallel",
    "scatter",
    "schedule",
    "still",
    "table",
    "utilisation",
]
