"""Comparison of repeated models: mean, standard deviation, and ranks that include the variance between seeds.

Welch's t-test compares each pair of models, because their variances may differ (Welch, *Biometrika* 34, 1947). Holm's
procedure (1979) corrects for all pairs. So with the stated confidence no model is wrongly called better than another
one. This holds for the rows that the models were validated on; `results` compares models over rows. Imports no NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, variance

from cerebro.figures.ranking.results import CONFIDENCE
from cerebro.state import Run
from cerebro.state.runs.repeats import RepeatedModel, best_value, repeated_models

_MAX_STEPS = 300
"""Maximum steps of the continued fraction; 20 are usual."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RepeatRow:
    """A repeated model.

    Attributes:
        rank: 1 more than the number of models that are significantly better; `None` with fewer than two values.
        model: such as ``m03``.
        value: its own best value, which chose it.
        mean, std: mean and sample standard deviation over its repeats; `None` without enough values.
        values: seed -> best value of the repeat.
        seeds: number of repeats; those without a value have failed or still train.
    """

    rank: int | None
    model: str
    value: float | None
    mean: float | None
    std: float | None
    values: dict[int, float]
    seeds: int

    @property
    def text(self) -> str:
        """Mean, standard deviation and number of seeds, such as ``0.912 ± 0.0031 (5 seeds)``."""
        if self.mean is None:
            return f"no value of {self.seeds} seeds yet"
        known = "" if len(self.values) == self.seeds else f"{len(self.values)} of "
        spread = "" if self.std is None else f" ± {self.std:.2g}"
        return f"{self.mean:.4g}{spread} ({known}{self.seeds} seeds)"


def repeat_rows(run: Run, *, confidence: float = CONFIDENCE) -> list[RepeatRow]:
    """Return the repeated models of a fit, by their means, models without a value last.

    With unequal variances, a model of a lower mean may have the better rank: its true mean is less certain.

    Args:
        confidence: probability that no model is wrongly called better than another one.
    """
    request = run.fit_request
    repeated = repeated_models(run.models, request, validated=run.is_validated)
    sign = 1 if request.mode == "max" else -1
    measured = [each for each in repeated if len(each.values) > 1]
    groups = [[sign * value for value in each.values.values()] for each in measured]
    ranks = dict(zip((each.model.id for each in measured), seed_ranks(groups, confidence), strict=True))
    rows = [_row(run, each, ranks.get(each.model.id)) for each in repeated]
    return sorted(rows, key=lambda row: (row.mean is None, 0.0 if row.mean is None else -sign * row.mean))


def _row(run: Run, repeated: RepeatedModel, rank: int | None) -> RepeatRow:
    values = [*repeated.values.values()]
    seeds = {each.id: each.lineage.seed or 0 for each in repeated.repeats}
    return RepeatRow(
        rank=rank,
        model=repeated.model.id,
        value=best_value(repeated.model, run.fit_request, validated=run.is_validated),
        mean=fmean(values) if values else None,
        std=math.sqrt(variance(values)) if len(values) > 1 else None,
        values={seeds[name]: value for name, value in repeated.values.items()},
        seeds=len(repeated.repeats),
    )


def seed_ranks(groups: Sequence[Sequence[float]], confidence: float) -> list[int]:
    """Return the rank of each group: 1 more than the number of significantly better groups.

    Args:
        groups: two or more values for each model; higher is better.
    """
    return tested_ranks(groups, welch, confidence)


def tested_ranks(
    groups: Sequence[Sequence[float]],
    test: Callable[[Sequence[float], Sequence[float]], float],
    confidence: float,
) -> list[int]:
    """Return the rank of each group by tests of all pairs, with Holm's correction.

    Args:
        groups: values of each model; higher is better.
        test: returns the two-sided p-value for equal means of two groups.
    """
    pairs = [*combinations(range(len(groups)), 2)]
    p_values = [test(groups[first], groups[second]) for first, second in pairs]
    means = [fmean(group) for group in groups]
    ranks = [1] * len(groups)
    ordered = sorted(range(len(pairs)), key=p_values.__getitem__)
    for done, index in enumerate(ordered):
        if p_values[index] > (1 - confidence) / (len(pairs) - done):
            break
        first, second = pairs[index]
        ranks[second if means[first] > means[second] else first] += 1
    return ranks


def welch(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the two-sided p-value of Welch's t-test for equal means.

    Without any variance, different means have p = 0.
    """
    difference = fmean(first) - fmean(second)
    one, other = variance(first) / len(first), variance(second) / len(second)
    if difference == 0:
        return 1.0
    if one + other == 0:
        return 0.0
    share = one / (one + other)  # the square of a tiny variance would be 0
    freedom = 1 / (share**2 / (len(first) - 1) + (1 - share) ** 2 / (len(second) - 1))
    return two_sided(difference**2 / (one + other), freedom)


def two_sided(squared: float, freedom: float) -> float:
    """Return the two-sided p-value of Student's t by the incomplete beta function (DLMF 8.17.22)."""
    x, a, b = freedom / (freedom + squared), freedom / 2, 0.5
    if x == 0:
        return 0.0
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
        if x < 1
        else -math.inf
    )
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, 1 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    """Evaluate the continued fraction of the incomplete beta function by Lentz's method."""
    tiny = 1e-300
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d or tiny)
    found = d
    for m in range(1, _MAX_STEPS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / ((1 + term * d) or tiny)
            c = (1 + term / c) or tiny
            found *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return found
