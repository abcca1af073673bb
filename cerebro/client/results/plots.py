"""Conversion of figures into Plotly objects and HTML files, for `EtlResult` and `FitResult`.

Plotly is imported on first use. `cerebro.figures` draws; nothing here knows runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cerebro.figures import CONFIG, Figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

_SUFFIX = ".html"


def to_plotly(figure: Figure, path: Path | str | None) -> go.Figure:
    """Return the figure as a Plotly object, and write it to `path` if given.

    Raises:
        ValueError: `path` does not end in ``.html``.
    """
    from cerebro.client.results.notebook_figure import NotebookFigure

    plot: go.Figure = NotebookFigure(figure)
    if path is not None:
        plot.write_html(html_file(path), config=CONFIG, include_plotlyjs=True)
    return plot


def html_file(path: Path | str) -> Path:
    """Return the path and create its folder.

    Raises:
        ValueError: `path` does not end in ``.html``.
    """
    target = Path(path)
    if target.suffix != _SUFFIX:
        raise ValueError(
            f"figures and reports are HTML files: use a path that ends in {_SUFFIX} instead of {str(path)!r}"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    return target
