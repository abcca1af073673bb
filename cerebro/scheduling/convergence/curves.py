"""Forecast of a model's future losses from its past ones. Pure; for `progress`.

Fits 24 curves, ``floor + height * x(t)``: exponentials ``x = 2 ** (-t / h)`` and power laws ``x = 1 / (1 + t
/ h)``, each with 12 half-lives `h`. `t` is the completed share of the model's training, so speed and length
do not matter. Least squares gives floor and height. A curve's likelihood, by its squared errors, is its
weight in the forecast. Exponentials alone would mistake the slow decrease of a power law for convergence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import mul
from typing import NamedTuple

HALF_LIVES = tuple(0.03 * 1.6**k for k in range(12))
"""Half-lives as shares of the training: from 3 % to five times its length."""
GOAL = 0.9
"""Share of the total decrease at which a model's quality counts as known."""

_DOUBT = 0.1
"""Prior relative standard deviation of a loss, weighted as `_DOUBTED` samples."""
_DOUBTED = 4
_FITTED = 3
"""Fitted parameters of a curve: floor, height, half-life."""
_LEAST_WEIGHT = 1e-6
"""Curves with a smaller weight are dropped."""
_NO_SPREAD = 1e-12
"""Variance of `x` below which rounding would determine the height."""


class Sample(NamedTuple):
    """Consecutive losses, averaged.

    Attributes:
        share: completed share of the model's training at their middle, 0 to 1.
        value: mean loss; smaller is better.
        number: number of losses.
    """

    share: float
    value: float
    number: int


class Prediction(NamedTuple):
    """Prediction of one curve.

    Attributes:
        weight: likelihood of the curve, 0 to 1.
        final: loss after training.
        remaining_share: share of the training until `GOAL` of the decrease; 0 or less if reached.
    """

    weight: float
    final: float
    remaining_share: float


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Predictions of all curves, with weights that sum to 1. `final` is the mean final loss."""

    predictions: tuple[Prediction, ...]
    final: float


class _Shape(NamedTuple):
    """``x(t)`` of a curve.

    `end` is its value after all training, `goal` the share of training until `GOAL` is reached.
    """

    is_power: bool
    half: float
    end: float
    goal: float

    def at(self, shares: Sequence[float]) -> list[float]:
        """Return `x` at the shares: 1 at share 0, decreasing."""
        half = self.half
        if self.is_power:
            return [half / (half + share) for share in shares]
        return [2 ** (-share / half) for share in shares]


def _shape(half: float, *, is_power: bool) -> _Shape:
    end = _Shape(is_power, half, 0.0, 0.0).at((1.0,))[0]
    at_goal = 1 - GOAL * (1 - end)
    goal = half * (1 / at_goal - 1) if is_power else -half * math.log2(at_goal)
    return _Shape(is_power, half, end, goal)


_SHAPES = tuple(_shape(half, is_power=is_power) for half in HALF_LIVES for is_power in (False, True))


def forecast(samples: Sequence[Sample], done: float) -> Forecast:
    """Forecast the losses.

    Args:
        samples: at least one, each of at least one loss.
        done: completed share of the model's training.
    """
    fit = _LeastSquares(samples)
    fits = [fit.of(shape) for shape in _SHAPES]
    least = min(rest for rest, _ in fits)
    doubt = _DOUBTED * (_DOUBT * fit.level) ** 2
    variance = (least + doubt) / (max(0, len(samples) - _FITTED) + _DOUBTED)
    likely = [math.exp((least - rest) / (2 * variance)) if variance else 1.0 for rest, _ in fits]
    total_likelihood = sum(likely)
    weighed = zip(_SHAPES, fits, (each / total_likelihood for each in likely), strict=True)
    predictions = [
        Prediction(weight, final, shape.goal - done)
        for shape, (_, final), weight in weighed
        if weight >= _LEAST_WEIGHT
    ]
    return Forecast(
        predictions=tuple(predictions), final=sum(each.weight * each.final for each in predictions)
    )


class _LeastSquares:
    """Fits floor and height of curves to the same samples, weighted by their counts."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._shares = [sample.share for sample in samples]
        self._counts = [sample.number for sample in samples]
        self._total = sum(self._counts)
        self.level = sum(sample.number * sample.value for sample in samples) / self._total
        self._weighed = [sample.number * (sample.value - self.level) for sample in samples]
        self._squares = sum(sample.number * (sample.value - self.level) ** 2 for sample in samples)
        # Losses are not negative; maximised metrics arrive with a negative sign.
        self._is_bounded = all(sample.value >= 0 for sample in samples)

    def of(self, shape: _Shape) -> tuple[float, float]:
        """Return (sum of squared errors, final loss) for the best floor and height."""
        level, total = self.level, self._total
        xs = shape.at(self._shares)
        counted = [*map(mul, self._counts, xs)]
        x, xx = sum(counted), sum(map(mul, counted, xs))
        shared, spread = sum(map(mul, self._weighed, xs)), xx - x * x / total
        height = shared / spread if spread > _NO_SPREAD * total else 0.0
        floor = level - height * x / total
        rest = self._squares - height * shared
        if self._is_bounded and floor < 0 < height:
            floor, crossed = 0.0, shared + level * x
            height = crossed / xx
            rest = self._squares + total * level * level - height * crossed
        return max(0.0, rest), floor + height * shape.end


def condensed(samples: Sequence[Sample], max_samples: int) -> tuple[Sample, ...]:
    """Merge neighbours until at most `max_samples` remain."""
    if len(samples) <= max_samples:
        return tuple(samples)
    bounds = [number * len(samples) // max_samples for number in range(max_samples + 1)]
    return tuple(_joined(samples[begin:end]) for begin, end in pairwise(bounds))


def _joined(samples: Sequence[Sample]) -> Sample:
    count = sum(sample.number for sample in samples)
    mean = sum(sample.number * sample.share for sample in samples) / count
    # Rounding may move the mean of equal shares out of their range.
    share = min(max(mean, samples[0].share), samples[-1].share)
    return Sample(share, sum(sample.number * sample.value for sample in samples) / count, count)
