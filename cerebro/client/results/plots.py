"""Figures as objects and as files. Plotly is loaded by those who draw, and by nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cerebro.figures import CONFIG, Figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

_FORM = ".html"


def plotted(drawn: Figure, path: Path | str | None) -> go.Figure:
    """The figure as an object of Plotly, to look at or to change; written to `path` if one is given.

    Raises:
        ValueError: `path` does not end in ``.html``.
    """
    from cerebro.client.results.shown import ShownFigure

    found: go.Figure = ShownFigure(drawn)
    if path is not None:
        found.write_html(html_file(path), config=CONFIG, include_plotlyjs=True)
    return found


def html_file(path: Path | str) -> Path:
    """Where to write; its folder is made.

    Raises:
        ValueError: `path` does not end in ``.html``.
    """
    found = Path(path)
    if found.suffix != _FORM:
        raise ValueError(
            f"figures and reports are HTML files: give a path that ends in {_FORM} instead of {str(path)!r}"
        )
    found.parent.mkdir(parents=True, exist_ok=True)
    return found
