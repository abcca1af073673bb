"""The contract suite of metrics."""

from __future__ import annotations

import math
from typing import Any

from cerebro.errors import MetricError
from cerebro.metrics import Metric
from cerebro.spec import Ratio


def check_metric(metric: Metric, outputs: Any, targets: Any) -> None:
    """Compute a metric of all rows, and of parts of them, and check that the parts add up.

    Workers compute metrics of batches and add numerators and denominators. A metric for which this is wrong, such as
    the area under the ROC curve, must not be a `Ratio` of batches.

    Args:
        metric: the function.
        outputs: a model's outputs, at least 2 rows; arrays or tensors.
        targets: the expected outputs.

    Raises:
        MetricError: the metric does not conform.

    Example:
        >>> import torch
        >>> from cerebro.metrics import accuracy
        >>> check_metric(accuracy, torch.eye(4), torch.tensor([0, 1, 1, 3]))
    """
    rows = len(outputs)
    if rows != len(targets) or rows < 2:
        raise MetricError(
            f"there are {rows} outputs and {len(targets)} targets: expected the same number, at least 2"
        )
    total_ratio = _ratio(metric, outputs, targets)
    for middle in {1, rows // 2, rows - 1}:
        total = _ratio(metric, outputs[:middle], targets[:middle]) + _ratio(
            metric, outputs[middle:], targets[middle:]
        )
        if not math.isclose(total.value, total_ratio.value, rel_tol=1e-5, abs_tol=1e-9):
            raise MetricError(
                f"the metric of {rows} rows is {total_ratio.value!r}, but rows 1 to {middle} and the others add up to "
                f"{total.value!r}: return a Ratio whose numerator and denominator are sums over rows"
            )


def _ratio(metric: Metric, outputs: Any, targets: Any) -> Ratio:
    found: object = metric(outputs, targets)
    if not isinstance(found, Ratio):
        raise MetricError(f"the metric returned {found!r}: expected a cerebro.Ratio")
    numerator, denominator = float(found.numerator), float(found.denominator)
    if not math.isfinite(numerator) or not math.isfinite(denominator) or denominator < 0:
        raise MetricError(
            f"the metric returned {found!r}: expected finite numbers, and a denominator of at least 0"
        )
    return Ratio(numerator, denominator)
