"""Metrics by name, for `SubEpochSpec.test` and similar methods: built-in ones, and ones of installed packages.

They run where the spec runs: in a worker's child process, or in the user's process for a dry run. A metric returns a
`Ratio`, so that batches, partitions and workers add up to the exact value for all rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from cerebro.errors import MetricError
from cerebro.runtime import plugins
from cerebro.spec import Ratio

__all__ = ["Metric", "accuracy", "mae", "measure", "mse"]

Metric = Callable[[Any, Any], Ratio]
"""A function of a model's outputs and the targets, one entry per row in both."""


def measure(names: Iterable[str], outputs: Any, targets: Any) -> dict[str, Ratio]:
    """Compute metrics of some rows, by name. Add the results of several batches with ``+``.

    Args:
        names: names of built-in metrics (``"accuracy"``, ``"mae"``, ``"mse"``) or of installed packages.
        outputs: a model's outputs, one entry per row.
        targets: the expected outputs, one entry per row.

    Raises:
        MetricError: there is no metric of this name, or one did not return a `Ratio`.
        PluginError: a package with the metric cannot be imported.

    Example:
        >>> import torch
        >>> outputs, targets = torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1])
        >>> measure(["accuracy"], outputs, targets)["accuracy"].value
        0.5
    """
    found = {}
    for name in names:
        found[name] = ratio = _metric(name)(outputs, targets)
        if not isinstance(ratio, Ratio):
            raise MetricError(f"the metric {name!r} returned {ratio!r}: expected a cerebro.Ratio")
    return found


def accuracy(outputs: Any, targets: Any) -> Ratio:
    """Return the fraction of rows whose largest output, in the last dimension, is at the target's index."""
    chosen = outputs.argmax(-1)
    is_right = chosen == _alike(targets, chosen, "largest outputs")
    return Ratio(is_right.sum(), _size(targets))


def mae(outputs: Any, targets: Any) -> Ratio:
    """Return the mean absolute error over all numbers."""
    return Ratio(abs(outputs - _alike(targets, outputs)).sum(), _size(targets))


def mse(outputs: Any, targets: Any) -> Ratio:
    """Return the mean squared error over all numbers."""
    return Ratio(((outputs - _alike(targets, outputs)) ** 2).sum(), _size(targets))


BUILT_IN: Mapping[str, Metric] = {"accuracy": accuracy, "mae": mae, "mse": mse}


@cache
def _metric(name: str) -> Metric:
    if name in BUILT_IN:
        return BUILT_IN[name]
    plugin = plugins.find("metrics", name)
    if plugin is None:
        known = ", ".join([*BUILT_IN, *plugins.names("metrics")])
        raise MetricError(
            f"there is no metric {name!r}: use {known}, or install a package with it on the workers"
        )
    return plugin.load_callable("a function of outputs and targets that returns a cerebro.Ratio")


def _size(values: Any) -> int:
    return math.prod(values.shape)


def _alike(targets: Any, outputs: Any, name: str = "outputs") -> Any:
    """Require equal shapes: broadcasting would compare each output with each target."""
    if tuple(targets.shape) != tuple(outputs.shape):
        raise MetricError(
            f"{name} have the shape {tuple(outputs.shape)}, targets {tuple(targets.shape)}: reshape one of them"
        )
    return targets
