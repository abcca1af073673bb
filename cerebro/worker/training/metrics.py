"""Metrics of user code: validated, combined over ranks, and converted for a task's result.

`sub_epoch` validates the return value of `train` and `test`; `ranks.grouped` combines ranks; `model_hopper.handler`
converts. Combining sub-epochs of an epoch is the fold's job (`cerebro.state`).
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from cerebro.contract.metrics import ADVICE, MOST, Terms, mixed, total
from cerebro.contract.texts import cleaned
from cerebro.contract.values import has_masked, is_array
from cerebro.errors import MetricError, NonFiniteMetricError, RanksDifferError
from cerebro.spec import PerRow, Ratio

_MAX_METRICS, _MAX_NAME = 1_000, 200
"""Metrics that a function may return, and characters of a name: the log keeps them of every sub-epoch."""

Measured = dict[str, float | Ratio]
"""Metrics by name: finite floats, and ratios of such whose denominators are not negative."""

PerRowValues = dict[str, "np.ndarray[Any, Any]"]
"""Values of metrics per row as float64, by name."""


def checked_metrics(returned: object, function: str, where: str) -> Measured:
    """Validate the metrics that user code returned.

    Raises:
        MetricError: not a dict of names and numbers, or a ratio without numbers.
        NonFiniteMetricError: a value is NaN or infinite.
    """
    if not isinstance(returned, Mapping):
        raise MetricError(
            f"{function}() returned {described(returned)}, expected a dict of metric names and numbers"
        )
    if len(returned) > _MAX_METRICS:
        raise MetricError(f"{function}() returned {len(returned)} metrics, expected at most {_MAX_METRICS}")
    metrics = {
        (named := checked_name(name, function)): _checked(value, function, named)
        for name, value in returned.items()
    }
    for name, value in metrics.items():
        for each in (
            (value.numerator, value.denominator, value.value) if isinstance(value, Ratio) else (value,)
        ):
            if not math.isfinite(each):
                of = f", as {value.numerator} / {value.denominator}," if isinstance(value, Ratio) else ""
                raise NonFiniteMetricError(
                    f"{name} became {each}{of} in {where}: the model is given up. Check the inputs for NaN "
                    "(empty cells), or lower the learning rate"
                )
    return metrics


def split_per_row(returned: object, rows: int) -> tuple[object, PerRowValues]:
    """Replace each `PerRow` in the result of `test` by its mean, and return its values.

    Args:
        returned: the result of the user's `test`.
        rows: rows of the data loader.

    Returns:
        The metrics without `PerRow`, and the values as float64, by name.

    Raises:
        MetricError: the number of values differs from the rows, or values are no numbers.
        NonFiniteMetricError: a value is NaN or infinite.
    """
    if not isinstance(returned, Mapping):
        return returned, {}
    values = {
        checked_name(name, "test"): _per_row(value, name, rows)
        for name, value in returned.items()
        if isinstance(value, PerRow)
    }
    means = {name: total_per_row(each).value for name, each in values.items()}
    return {**returned, **means}, values


def total_per_row(values: np.ndarray[Any, Any]) -> Ratio:
    """Return the sum of values, rounded once, over their number."""
    return Ratio(math.fsum(values.tolist()), float(len(values)))


def _per_row(metric: PerRow, name: str, rows: int) -> np.ndarray[Any, Any]:
    column = metric.values
    if has_masked(column):
        raise MetricError(
            f"test() returned masked values of {name!r}, which stand for no numbers: return one number for each row"
        )
    if hasattr(column, "detach"):
        column = column.detach().cpu().double().numpy()
    try:
        values = np.asarray(column)
    except ValueError:
        values = np.empty((), dtype=object)
    if values.ndim != 1 or (values.dtype.kind not in "biuf" and len(values)):
        raise MetricError(
            f"test() returned {described(metric.values)} as the values per row of {name!r}, expected one number for "
            "each row, in one dimension"
        )
    if len(values) != rows:
        raise MetricError(
            f"test() returned {len(values)} values of {name!r} for {rows} rows: return one per row, in the order of "
            "the data loader"
        )
    values = values.astype(np.float64)
    if bad := int(np.count_nonzero(~np.isfinite(values))):
        raise NonFiniteMetricError(
            f"{name} is NaN or infinite for {bad} of {rows} rows in evaluation: the model is given up. Check the "
            "inputs for NaN (empty cells), or lower the learning rate"
        )
    with np.errstate(over="ignore"):
        is_too_large = np.abs(values).sum() > MOST
    if is_too_large:
        raise MetricError(
            f"test() returned values of {name!r} whose sum exceeds {MOST:g}: divide them by the same number"
        )
    return values


def checked_name(name: object, function: str) -> str:
    """Return a metric's name as text that can be stored and shown.

    Raises:
        MetricError: the name is no text, or too long, or has characters that cannot be shown.
    """
    if not isinstance(name, str):
        raise MetricError(
            f"{function}() names a metric {name!r} ({type(name).__name__}), expected text as the name"
        )
    text = "".join(name)
    if not 0 < len(text) <= _MAX_NAME or not text.isprintable():
        raise MetricError(
            f"{function}() names a metric {cleaned(text, _MAX_NAME)!r}, expected 1 to {_MAX_NAME} characters that can "
            "be shown"
        )
    return text


class RankMetrics(NamedTuple):
    """One rank's metrics.

    Attributes:
        rows: the rank's number of rows in the sub-epoch.
        share: index of its row share; ranks with the same share have read the same rows.
    """

    metrics: Measured
    rows: int
    share: int


def of_ranks(found: Sequence[RankMetrics]) -> Measured:
    """Combine the ranks' metrics: means weighted by rows, and ratios over all shares.

    Raises:
        RanksDifferError: the ranks return different names or kinds.
    """
    kinds = [kinds_of(rank.metrics) for rank in found]
    for number, other in enumerate(kinds):
        for name in sorted(name for name in {*kinds[0], *other} if kinds[0].get(name) != other.get(name)):
            values = [f"rank {n} {one.metrics[name]!r}" for n, one in enumerate(found) if name in one.metrics]
            lacking = number if name not in other else 0 if name not in kinds[0] else None
            where = "on some ranks only" if lacking is not None else "as a ratio on some ranks only"
            detail = "" if lacking is None else f", nothing on rank {lacking}"
            raise RanksDifferError(
                f"train() returned {name!r} {where} ({', '.join(values)}{detail}): return the same metrics on each"
            )
    shares = {rank.share: rank.metrics for rank in reversed(found)}
    rows = sum(rank.rows for rank in found)
    return {
        name: total([terms_of(metrics[name]) for metrics in shares.values()])
        if is_ratio
        else sum(cast(float, rank.metrics[name]) * rank.rows for rank in found) / rows
        for name, is_ratio in kinds[0].items()
    }


def numbers_of(metrics: Measured) -> dict[str, float]:
    """Return each metric as a number."""
    return {name: each.value if isinstance(each, Ratio) else each for name, each in metrics.items()}


def ratios_of(metrics: Measured) -> dict[str, Terms]:
    """Return the metrics that are ratios."""
    return {name: terms_of(each) for name, each in metrics.items() if isinstance(each, Ratio)}


def kinds_of(metrics: Measured) -> dict[str, bool]:
    """Return, by name, True for a ratio."""
    return {name: isinstance(each, Ratio) for name, each in metrics.items()}


def terms_of(metric: float | Ratio) -> Terms:
    """Return both terms of a ratio."""
    assert isinstance(metric, Ratio)
    return Terms(metric.numerator, metric.denominator)


def require_mergeable(
    metrics: Measured, merges: Mapping[str, bool], needs: Sequence[str], model: str, where: str
) -> None:
    """Raise MetricError unless metrics can be combined with the epoch's other sub-epochs.

    A metric that some sub-epochs lack is omitted from the epoch without an error.

    Args:
        merges: metrics of earlier sub-epochs, name -> True for a ratio.
        needs: names of required metrics.
    """
    kinds = kinds_of(metrics)
    if (name := mixed(kinds, merges)) is not None:
        here, there = ("a ratio", "a number") if kinds[name] else ("a number", "a ratio")
        raise MetricError(
            f"metric {name!r} of model {model} is {here} in {where} and was {there} before in this epoch, which cannot "
            f"be put together: {ADVICE}"
        )
    for name in needs:
        if name not in metrics:
            names = ", ".join(sorted(metrics)) or "nothing"
            raise MetricError(
                f"metric {name!r} of model {model} is missing in {where}, where train() returned: {names}. It ranks "
                f"models or a stop rule reads it, so all partitions must have it: {ADVICE}"
            )


def described(value: object) -> str:
    """Describe a value that user code returned, for people."""
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" + (f" of shape {tuple(shape)}" if shape is not None else "")


def _checked(value: object, function: str, name: str) -> float | Ratio:
    if not isinstance(value, Ratio):
        return _number(value, function, name)
    ratio = Ratio(
        _number(value.numerator, function, f"the numerator of {name}"),
        _number(value.denominator, function, f"the denominator of {name}"),
    )
    if ratio.denominator < 0 or (ratio.denominator == 0 and ratio.numerator != 0):
        raise MetricError(
            f"{function}() returned {ratio.numerator} / {ratio.denominator} for {name!r}, expected a denominator above "
            "0, or 0 / 0 where there is nothing to count"
        )
    for term in (ratio.numerator, ratio.denominator):
        if math.isfinite(term) and abs(term) > MOST:
            raise MetricError(
                f"{function}() returned {ratio.numerator} / {ratio.denominator} for {name!r}, expected terms up to "
                f"{MOST:g}, because those of all sub-epochs are added up: divide both by the same number"
            )
    return ratio


def _number(value: object, function: str, name: str) -> float:
    plain: object = value
    if not isinstance(value, numbers.Real) and _size(value) == 1:
        if has_masked(value):
            raise MetricError(
                f"{function}() returned a masked value for {name!r}, which stands for no number: return {name!r} only "
                "where it has a value"
            )
        plain = cast(Any, value).item()
    elif isinstance(value, np.integer) and value.dtype.kind in "iu":
        plain = int(value)  # NumPy compares its integers with floats inexactly
    # NumPy counts a duration as a number, and dates become one.
    is_number = getattr(getattr(value, "dtype", None), "kind", "f") in "biuf"
    if not is_number or not isinstance(plain, numbers.Real):
        raise MetricError(
            f"{function}() returned {described(value)} for {name!r}, expected one number or cerebro.Ratio(numerator, "
            "denominator)"
        )
    try:
        number = float(plain)
    except OverflowError:
        number = math.inf
    if math.isfinite(number) and number != plain:
        raise MetricError(
            f"{function}() returned {plain!r} for {name!r}, which float64 cannot hold exactly: round it by float()"
        )
    return number


def _size(value: object) -> int:
    """Return the number of elements of an array or tensor; 0 for all else."""
    if not is_array(value):
        return 0
    return int(cast(Any, value).numel() if hasattr(value, "numel") else cast(Any, value).size)
