"""Figures of a run, for notebooks and files. The only importer of matplotlib.

Figures are made without pyplot: no window, no global list of open figures, nothing to close.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAMED = 12
"""Most models a legend names."""

_DPI = 120

# Okabe and Ito's palette: told apart by colour-blind readers, too.
_PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
_DASHES = ("-", "--", ":", "-.")


def learning_curves(history: pd.DataFrame, metric: str, path: Path | str | None) -> Figure:
    """`metric` over epochs, a line per model; validation if there is one, else training.

    Args:
        history: see `FitResult.history`.
        metric: one of its columns.
        path: file to write, if one is given; its suffix chooses the format.
    """
    from matplotlib.ticker import MaxNLocator

    figure = _figure(8, 4.5)
    axes = figure.subplots()
    split = "valid" if "valid" in set(history["split"]) else "train"
    axes.set(xlabel="epoch", ylabel=f"{metric} ({split})", title=f"{metric} per epoch")
    if metric not in history:
        _say(axes, f"no epoch with {metric!r} is complete yet")
        return _written(figure, path)
    shown = history[(history["split"] == split) & history[metric].notna()]
    models = sorted(set(shown["model"]))
    for position, model in enumerate(models):
        line = shown[shown["model"] == model]
        style = _DASHES[position // len(_PALETTE) % len(_DASHES)]
        colour = _PALETTE[position % len(_PALETTE)]
        axes.plot(line["epoch"], line[metric], style, marker="o", markersize=3, label=model, color=colour)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))  # there is no epoch 1.5
    axes.grid(alpha=0.3)
    if len(models) <= _NAMED:
        axes.legend(fontsize="small", ncols=2)
    return _written(figure, path)


def _figure(width: float, height: float) -> Figure:
    """An empty figure (inches) that a notebook draws when a cell ends with it."""
    from matplotlib.figure import Figure

    class Shown(Figure):
        """Notebooks draw figures they know from pyplot; this one says itself how it looks."""

        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png", dpi=_DPI)
            return buffer.getvalue()

    return Shown(figsize=(width, height), layout="constrained")


def _say(axes: Axes, text: str) -> None:
    axes.set(xticks=[], yticks=[])
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)


def _written(figure: Figure, path: Path | str | None) -> Figure:
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=_DPI)
    return figure
