"""Figures of a run, for notebooks and files. The only importer of matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_NAMED = 12
"""Most models a legend names."""


def learning_curves(history: pd.DataFrame, metric: str, path: Path | str | None) -> Figure:
    """`metric` over epochs, a line per model; validation if there is one, else training."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    split = "valid" if "valid" in set(history["split"]) else "train"
    shown = history[(history["split"] == split) & history[metric].notna()]
    models = list(dict.fromkeys(shown["model"]))
    colours = _colours(models)
    for model in models:
        line = shown[shown["model"] == model]
        axes.plot(line["epoch"], line[metric], marker="o", markersize=3, label=model, color=colours[model])
    axes.set(xlabel="epoch", ylabel=f"{metric} ({split})", title=f"{metric} per epoch")
    axes.grid(alpha=0.3)
    if len(models) <= _NAMED:
        axes.legend(fontsize="small", ncols=2)
    return _written(figure, path)


def schedule(visits: pd.DataFrame, path: Path | str | None) -> Figure:
    """Gantt chart: a row per worker, a bar per committed unit, a colour per model."""
    from matplotlib.figure import Figure

    workers = sorted(set(visits["worker"]))
    models = sorted(set(visits["model"]))
    figure = Figure(figsize=(10, 1.2 + 0.7 * len(workers)), layout="constrained")
    axes = figure.subplots()
    colours = _colours(models)
    origin = visits["started"].min()
    for row, worker in enumerate(workers):
        units = visits[visits["worker"] == worker]
        spans = list(zip(units["started"] - origin, units["ended"] - units["started"], strict=True))
        axes.broken_barh(
            spans, (row - 0.4, 0.8), facecolors=[colours[m] for m in units["model"]], edgecolor="white"
        )
    axes.set_yticks(range(len(workers)), workers)
    axes.set(xlabel="seconds", title="Units over workers")
    if len(models) <= _NAMED:
        from matplotlib.patches import Patch

        handles = [Patch(color=colours[model], label=model) for model in models]
        figure.legend(handles=handles, loc="outside right upper", fontsize="small")
    return _written(figure, path)


def _colours(models: list[str]) -> dict[str, str]:
    # Okabe and Ito's palette: told apart by colour-blind readers, too.
    palette = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
    return {model: palette[position % len(palette)] for position, model in enumerate(sorted(models))}


def _written(figure: Figure, path: Path | str | None) -> Figure:
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    return figure
