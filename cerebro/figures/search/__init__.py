"""Figures of a search: best value and hypervolume over models, rungs, Pareto front, contours.

`cerebro.client.reporting.drawings` and `dispatcher.analysis.figures` call them. Slices over one hyperparameter are in
`cerebro.figures.scatter`.
"""

from cerebro.figures.search.best_so_far import (
    EpochValues,
    Observation,
    ProgressAxis,
    best_so_far,
    best_values,
    epoch_values,
    observations,
    values_of_epochs,
)
from cerebro.figures.search.contour import contour
from cerebro.figures.search.hypervolume import HypervolumeStep, hypervolume, hypervolume_steps
from cerebro.figures.search.pareto import pareto, pareto_axes
from cerebro.figures.search.rungs import rungs

__all__ = [
    "EpochValues",
    "HypervolumeStep",
    "Observation",
    "ProgressAxis",
    "best_so_far",
    "best_values",
    "contour",
    "epoch_values",
    "hypervolume",
    "hypervolume_steps",
    "observations",
    "pareto",
    "pareto_axes",
    "rungs",
    "values_of_epochs",
]
